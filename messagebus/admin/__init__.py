"""Operators' tools in Python: names on all brokers, parked messages, spools, moves.

`declare`, which applications call too, is in `messagebus`; proofs of tokens are in `messagebus.admin.proof`.
"""

from messagebus import _importer

_HOME_OF = {
    "BrokerList": "messagebus.broker",
    "ListedBroker": "messagebus.broker",
    "ParkedCount": "messagebus.admin.parked",
    "ParkedCounts": "messagebus.admin.parked",
    "ParkedFilter": "messagebus.admin.parked",
    "ParkedMessage": "messagebus.admin.parked",
    "ParkedMessages": "messagebus.admin.parked",
    "ParkedMoved": "messagebus.admin.parked",
    "ParkedProgress": "messagebus.admin.parked",
    "PurgedMessages": "messagebus.admin.directory",
    "SpoolDropped": "messagebus.admin.spool",
    "SpoolFolderStatus": "messagebus.admin.spool",
    "SpooledMessage": "messagebus.admin.spool",
    "SubscriptionCount": "messagebus.admin.directory",
    "SubscriptionCounts": "messagebus.admin.directory",
    "brokers": "messagebus.admin.directory",
    "count_parked": "messagebus.admin.parked",
    "count_subscriptions": "messagebus.admin.directory",
    "delete_subscriptions": "messagebus.admin.directory",
    "delete_topics": "messagebus.admin.directory",
    "drain_broker": "messagebus.admin.directory",
    "drop_spooled": "messagebus.admin.spool",
    "purge_parked": "messagebus.admin.parked",
    "purge_subscriptions": "messagebus.admin.directory",
    "read_parked": "messagebus.admin.parked",
    "read_spool": "messagebus.admin.spool",
    "redrive_parked": "messagebus.admin.parked",
    "spool_status": "messagebus.admin.spool",
}

__all__ = list(_HOME_OF)

__getattr__ = _importer(globals(), _HOME_OF)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
