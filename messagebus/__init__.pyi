from collections.abc import Callable, Mapping
from typing import Any

from messagebus.admin.directory import Registration as Registration
from messagebus.admin.directory import declare as declare
from messagebus.aio import AsyncConsumer as AsyncConsumer
from messagebus.aio import AsyncPublisher as AsyncPublisher
from messagebus.app import App as App
from messagebus.broker import Broker as Broker
from messagebus.config import Batching as Batching
from messagebus.config import BusConfig as BusConfig
from messagebus.config import ConsumerConfig as ConsumerConfig
from messagebus.config import PublisherConfig as PublisherConfig
from messagebus.config import Spool as Spool
from messagebus.consumer import Consumer as Consumer
from messagebus.core.checkpoint import Checkpoint as Checkpoint
from messagebus.core.deliveries import Receipt as Receipt
from messagebus.destination import Destination as Destination
from messagebus.destination import Queue as Queue
from messagebus.destination import Source as Source
from messagebus.destination import Stream as Stream
from messagebus.destination import Subscription as Subscription
from messagebus.destination import Topic as Topic
from messagebus.errors import AlreadySettled as AlreadySettled
from messagebus.errors import BacklogFull as BacklogFull
from messagebus.errors import CertificateRefused as CertificateRefused
from messagebus.errors import ConfigError as ConfigError
from messagebus.errors import LinkLost as LinkLost
from messagebus.errors import LoginRefused as LoginRefused
from messagebus.errors import MessageBusError as MessageBusError
from messagebus.errors import MessageInvalid as MessageInvalid
from messagebus.errors import NameInvalid as NameInvalid
from messagebus.errors import NotFound as NotFound
from messagebus.errors import NotReady as NotReady
from messagebus.errors import PublishError as PublishError
from messagebus.errors import Refused as Refused
from messagebus.errors import RegistrationIncomplete as RegistrationIncomplete
from messagebus.errors import ReplayGap as ReplayGap
from messagebus.errors import SpoolFull as SpoolFull
from messagebus.errors import Stopped as Stopped
from messagebus.errors import StoreAway as StoreAway
from messagebus.errors import TopologyError as TopologyError
from messagebus.errors import TopologyMismatch as TopologyMismatch
from messagebus.errors import Unknown as Unknown
from messagebus.errors import Unroutable as Unroutable
from messagebus.errors import WrongPayload as WrongPayload
from messagebus.handling import Park as Park
from messagebus.handling import Reject as Reject
from messagebus.handling import RetryLater as RetryLater
from messagebus.handling import RetryPolicy as RetryPolicy
from messagebus.hooks import Hooks as Hooks
from messagebus.inbox import Once as Once
from messagebus.message import Delivery as Delivery
from messagebus.message import Message as Message
from messagebus.message import Payload as Payload
from messagebus.outbox import AsyncRelay as AsyncRelay
from messagebus.outbox import Outbox as Outbox
from messagebus.outbox import Relay as Relay
from messagebus.outbox import RelayConfig as RelayConfig
from messagebus.publisher import Publisher as Publisher
from messagebus.replay import AsyncReplay as AsyncReplay
from messagebus.replay import Replay as Replay
from messagebus.replay import Replayed as Replayed
from messagebus.secret import Secret as Secret
from messagebus.stats import AppStats as AppStats
from messagebus.stats import BrokerStats as BrokerStats
from messagebus.stats import ConsumerStats as ConsumerStats
from messagebus.stats import Durability as Durability
from messagebus.stats import Outcome as Outcome
from messagebus.stats import Published as Published
from messagebus.stats import PublisherStats as PublisherStats
from messagebus.stats import RelayStats as RelayStats
from messagebus.stats import Status as Status
from messagebus.stores import Dedup as Dedup

__all__: list[str]
__version__: str

def _importer(namespace: dict[str, Any], home_of: Mapping[str, str]) -> Callable[[str], Any]: ...
