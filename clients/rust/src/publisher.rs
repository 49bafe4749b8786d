//! One link through the balancer, confirms, and the manners of a publisher.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use amqprs::callbacks::ChannelCallback;
use amqprs::channel::{BasicPublishArguments, Channel, ConfirmSelectArguments};
use amqprs::connection::Connection;
use amqprs::{Ack, BasicProperties, Cancel, CloseChannel, Nack, Return};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{sleep, timeout};

use crate::consumer::hang_up;
use crate::list::{follow, List};
use crate::settings::{Backoff, Fault, Settings};

const WINDOW: usize = 256;
const ROOM: usize = 100_000;
const CALLER_WAITS: Duration = Duration::from_secs(10);
const CONFIRM_SLOW: Duration = Duration::from_millis(1500);
const WRITE_SLOW: Duration = Duration::from_secs(1);
const LEAVING: Duration = Duration::from_secs(10);
const LASTED: Duration = Duration::from_secs(5);
const LIFETIME_S: f64 = 600.0;

#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Outcome {
    Confirmed,
    Refused,
    Unroutable,
    Unknown,
}

/// What a broker says of publishes, in its order.
enum Event {
    Confirm { tag: u64, multiple: bool, ok: bool },
    Return(String),
}

/// The library tells returns and confirms from one task, in their order. Without it a cancel by the broker is not seen.
#[derive(Default)]
pub struct Callbacks(Option<(u64, mpsc::UnboundedSender<(u64, Event)>)>);

impl Callbacks {
    fn tell(&self, event: Event) {
        if let Some((epoch, events)) = &self.0 {
            let _ = events.send((*epoch, event));
        }
    }
}

type Done = Result<(), amqprs::error::Error>;

#[async_trait::async_trait]
impl ChannelCallback for Callbacks {
    async fn close(&mut self, _: &Channel, _: CloseChannel) -> Done {
        Ok(())
    }
    async fn cancel(&mut self, _: &Channel, _: Cancel) -> Done {
        Ok(())
    }
    async fn flow(&mut self, _: &Channel, active: bool) -> Result<bool, amqprs::error::Error> {
        Ok(active)
    }
    async fn publish_ack(&mut self, _: &Channel, ack: Ack) {
        self.tell(Event::Confirm { tag: ack.delivery_tag(), multiple: ack.mutiple(), ok: true });
    }
    async fn publish_nack(&mut self, _: &Channel, nack: Nack) {
        self.tell(Event::Confirm { tag: nack.delivery_tag(), multiple: nack.multiple(), ok: false });
    }
    async fn publish_return(&mut self, _: &Channel, _: Return, properties: BasicProperties, _: Vec<u8>) {
        self.tell(Event::Return(properties.message_id().cloned().unwrap_or_default()));
    }
}

struct Job {
    exchange: String,
    key: String,
    properties: BasicProperties,
    body: Vec<u8>,
    until: Instant,
    done: oneshot::Sender<Outcome>,
}

impl Job {
    fn id(&self) -> &str {
        self.properties.message_id().map_or("", String::as_str)
    }
}

struct Link {
    epoch: u64,
    connection: Connection,
    channel: Channel,
    tag: u64,
    in_flight: BTreeMap<u64, (String, oneshot::Sender<Outcome>, Instant)>,
    returned: HashSet<String>,
    began: Instant,
    replace_at: Instant,
}

impl Link {
    fn broker(&self) -> &str {
        self.connection.server_properties().cluster_name()
    }

    fn is_in_trouble(&self) -> bool {
        // amqprs does not ask brokers to tell that they block: what they do not confirm tells it.
        let oldest = self.in_flight.values().next();
        !self.connection.is_open() || oldest.is_some_and(|(_, _, sent)| sent.elapsed() > CONFIRM_SLOW)
    }

    fn settle(&mut self, last: u64, multiple: bool, ok: bool) {
        let first = if multiple { 0 } else { last };
        let tags: Vec<u64> = self.in_flight.range(first..=last).map(|(tag, _)| *tag).collect();
        for (id, done, _) in tags.iter().filter_map(|tag| self.in_flight.remove(tag)) {
            let was_returned = self.returned.remove(&id);
            let outcome = if was_returned { Outcome::Unroutable } else { Outcome::Confirmed };
            let _ = done.send(if ok { outcome } else { Outcome::Refused });
        }
    }

    /// Hang up; what is not confirmed is unknown.
    fn leave(self) {
        for (_, (_, done, _)) in self.in_flight {
            let _ = done.send(Outcome::Unknown);
        }
        tokio::spawn(hang_up(self.channel, self.connection));
    }
}

pub struct Publisher(mpsc::Sender<Job>);

impl Publisher {
    pub fn start(settings: Arc<Settings>) -> Arc<Publisher> {
        let (jobs, taken) = mpsc::channel(ROOM);
        tokio::spawn(run(settings, taken));
        Arc::new(Publisher(jobs))
    }

    /// Publish in the order of these calls, and return a future of the outcome.
    pub fn publish(&self, exchange: String, key: String, properties: BasicProperties, body: Vec<u8>) -> impl std::future::Future<Output = Outcome> {
        let (done, outcome) = oneshot::channel();
        let until = Instant::now() + CALLER_WAITS;
        let _ = self.0.try_send(Job { exchange, key, properties, body, until, done });
        async { outcome.await.unwrap_or(Outcome::Unknown) }
    }
}

async fn dial(settings: Arc<Settings>, epoch: u64, wait: Duration, patience: Duration, events: mpsc::UnboundedSender<(u64, Event)>) -> Result<Link, Fault> {
    sleep(wait).await;
    let connection = settings.dial(&settings.broker, true, patience).await?;
    let opened = timeout(patience, async {
        let channel = connection.open_channel(None).await?;
        channel.register_callback(Callbacks(Some((epoch, events)))).await?;
        channel.confirm_select(ConfirmSelectArguments::default()).await?;
        Ok::<_, Fault>(channel)
    });
    let channel = opened.await??;
    let (began, spread) = (Instant::now(), 0.8 + 0.4 * fastrand::f64());
    let replace_at = began + Duration::from_secs_f64(LIFETIME_S * spread);
    let (in_flight, returned) = (BTreeMap::new(), HashSet::new());
    Ok(Link { epoch, connection, channel, tag: 0, in_flight, returned, began, replace_at })
}

async fn run(settings: Arc<Settings>, mut jobs: mpsc::Receiver<Job>) {
    let (found, list) = watch::channel(List::default());
    let (_applied, nothing) = watch::channel(0);
    tokio::spawn(follow(settings.clone(), String::new(), found, nothing));
    let (told, mut events) = mpsc::unbounded_channel();
    let (dialled, mut dials) = mpsc::unbounded_channel();
    let mut backlog: VecDeque<Job> = VecDeque::new();
    let mut current: Option<Link> = None;
    let mut leaving: Vec<(Link, Instant)> = Vec::new();
    let (mut backoff, mut epoch, mut is_dialling) = (Backoff::new(100, 5000), 0, false);
    let mut wait = Duration::ZERO;
    loop {
        if let Some(link) = current.take_if(|link| link.is_in_trouble()) {
            wait = if link.began.elapsed() < LASTED { backoff.next() } else { Duration::ZERO };
            link.leave();
        }
        let drains = |link: &Link| list.borrow().brokers.iter().any(|(at, draining)| *draining && at == link.broker());
        if let Some(link) = current.take_if(|link| Instant::now() > link.replace_at || drains(link)) {
            leaving.push((link, Instant::now() + LEAVING));
        }
        for (link, _) in leaving.extract_if(.., |(link, until)| link.in_flight.is_empty() || *until < Instant::now() || !link.connection.is_open()) {
            link.leave();
        }
        if current.is_none() && !is_dialling {
            (is_dialling, epoch) = (true, epoch + 1);
            let (settings, told, dialled) = (settings.clone(), told.clone(), dialled.clone());
            let (now, patience) = (std::mem::take(&mut wait), backoff.patience());
            tokio::spawn(async move { dialled.send(dial(settings, epoch, now, patience, told).await) });
        }
        backlog.retain(|job| job.until > Instant::now() && !job.done.is_closed());
        if let Some(link) = &mut current {
            pump(link, &leaving, &mut backlog).await;
        }
        tokio::select! {
            Some(job) = jobs.recv(), if backlog.len() < ROOM => {
                backlog.push_back(job);
                while let Ok(job) = jobs.try_recv() {
                    backlog.push_back(job);
                }
            }
            Some((epoch, event)) = events.recv() => {
                let all = current.iter_mut().chain(leaving.iter_mut().map(|(link, _)| link));
                for link in all.filter(|link| link.epoch == epoch) {
                    match &event {
                        Event::Return(id) => drop(link.returned.insert(id.clone())),
                        Event::Confirm { tag, multiple, ok } => link.settle(*tag, *multiple, *ok),
                    }
                }
            }
            Some(link) = dials.recv() => {
                is_dialling = false;
                match link {
                    Ok(link) => current = Some(link),
                    Err(fault) => {
                        eprintln!("publisher: {fault}");
                        wait = backoff.next();
                    }
                }
            }
            _ = sleep(Duration::from_millis(50)) => (),
        }
        if current.as_ref().is_some_and(|link| link.began.elapsed() > LASTED) {
            backoff.reset();
        }
    }
}

/// Send what the window has room for; of one id, one publish at a time.
async fn pump(link: &mut Link, leaving: &[(Link, Instant)], backlog: &mut VecDeque<Job>) {
    while link.in_flight.len() < WINDOW {
        let all = || std::iter::once(&*link).chain(leaving.iter().map(|(link, _)| link));
        let is_free = |job: &Job| !all().any(|each| each.in_flight.values().any(|(id, ..)| id == job.id()));
        let Some(job) = backlog.iter().position(is_free).and_then(|at| backlog.remove(at)) else { return };
        let args = BasicPublishArguments::new(&job.exchange, &job.key).mandatory(true).finish();
        link.tag += 1;
        link.in_flight.insert(link.tag, (job.id().to_string(), job.done, Instant::now()));
        let sent = timeout(WRITE_SLOW, link.channel.basic_publish(job.properties, job.body, args)).await;
        if !matches!(sent, Ok(Ok(()))) {
            return;
        }
    }
}
