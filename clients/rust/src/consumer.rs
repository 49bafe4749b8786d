//! One link to every broker of the list, each on its own; deliveries with receipts.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use amqprs::channel::{BasicAckArguments, BasicCancelArguments, BasicConsumeArguments, BasicNackArguments};
use amqprs::channel::{BasicQosArguments, Channel, ConsumerMessage};
use amqprs::connection::Connection;
use amqprs::{BasicProperties, FieldTable};
use tokio::sync::{mpsc, oneshot, watch, Notify};
use tokio::time::{sleep, timeout};

use crate::answers::{int, Answers};
use crate::list::{follow, List};
use crate::publisher::Callbacks;
use crate::settings::{queues, Backoff, Fault};
use crate::{batch, register};

const APPLIED_HOLD: Duration = Duration::from_secs(1);
const LASTED: Duration = Duration::from_secs(5);
const LET_GO: Duration = Duration::from_secs(60);
const HANG_UP: Duration = Duration::from_secs(5);

type Ask = (u64, oneshot::Sender<bool>);

/// A message, with the link that delivered it: dropped with the link, so no answer goes to another one.
pub struct Delivery {
    pub properties: BasicProperties,
    pub body: Vec<u8>,
    pub broker: String,
    pub queue: String,
    pub park: String,
    tag: u64,
    link: mpsc::UnboundedSender<Ask>,
    /// Entries of its batch that are not dealt with.
    left: Arc<AtomicUsize>,
}

impl Delivery {
    pub fn headers(&self) -> FieldTable {
        self.properties.headers().cloned().unwrap_or_default()
    }

    pub fn attempt(&self) -> i64 {
        int(&self.headers(), "mb-attempt").unwrap_or(1)
    }

    pub fn first_ms(&self) -> i64 {
        let sent = self.properties.timestamp().unwrap_or(0) as i64 * 1000;
        int(&self.headers(), "mb-first-ms").unwrap_or(sent)
    }

    /// True when the ack was sent on the link of the delivery, or waits for other entries of its batch.
    pub async fn ack(&self) -> bool {
        if self.left.fetch_sub(1, Ordering::AcqRel) > 1 {
            return !self.link.is_closed();
        }
        let (done, sent) = oneshot::channel();
        self.link.send((self.tag, done)).is_ok() && sent.await.unwrap_or(false)
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Want {
    Take,
    LetGo,
    Stop,
}

pub struct Consumer {
    answers: Arc<Answers>,
    source: String,
    queue: String,
    park: String,
    prefetch: u16,
    out: mpsc::UnboundedSender<Delivery>,
    /// Brokers where a consumer is open, or a dial has failed.
    tried: Mutex<HashMap<String, bool>>,
    news: Notify,
    stopping: watch::Sender<bool>,
}

impl Consumer {
    /// Consume until `stop`; None when the name is not allowed.
    pub fn start(answers: Arc<Answers>, source: &str, prefetch: u16, out: mpsc::UnboundedSender<Delivery>) -> Option<Arc<Consumer>> {
        let (queue, park) = queues(source)?;
        let (tried, news, stopping) = (Mutex::default(), Notify::new(), watch::Sender::new(false));
        let made = Consumer { answers, source: source.to_string(), queue, park, prefetch, out, tried, news, stopping };
        let made = Arc::new(made);
        tokio::spawn(made.clone().run());
        Some(made)
    }

    pub fn stop(&self) {
        self.stopping.send_replace(true);
    }

    async fn run(self: Arc<Self>) {
        let (found, mut list) = watch::channel(List::default());
        let (applied, told) = watch::channel(0);
        tokio::spawn(follow(self.answers.settings.clone(), self.source.clone(), found, told));
        let mut links: HashMap<String, watch::Sender<Want>> = HashMap::new();
        let (mut stopping, mut since) = (self.stopping.subscribe(), Instant::now());
        loop {
            let now = list.borrow().clone();
            let open = now.brokers.iter().all(|(at, _)| self.tried.lock().unwrap().get(at) == Some(&true));
            if !now.brokers.is_empty() && (open || since.elapsed() > APPLIED_HOLD) {
                applied.send_if_modified(|was| std::mem::replace(was, now.generation) != now.generation);
            }
            tokio::select! {
                Ok(()) = list.changed() => {
                    since = Instant::now();
                    let now = list.borrow().clone();
                    for (at, want) in &links {
                        let here = now.brokers.iter().any(|(listed, _)| listed == at);
                        want.send_replace(if here { Want::Take } else { Want::LetGo });
                    }
                    for (at, _) in now.brokers {
                        links.entry(at.clone()).or_insert_with(|| {
                            let (want, wanted) = watch::channel(Want::Take);
                            tokio::spawn(self.clone().keep(at, wanted));
                            want
                        });
                    }
                }
                _ = self.news.notified() => (),
                _ = sleep(Duration::from_millis(200)) => (),
                _ = stopping.changed() => {
                    links.values().for_each(|want| _ = want.send_replace(Want::Stop));
                    return std::future::pending().await;
                }
            }
        }
    }

    fn tell(&self, at: &str, tried: bool) {
        self.tried.lock().unwrap().insert(at.to_string(), tried);
        self.news.notify_one();
    }

    /// Hold a link to one broker whenever it is wanted.
    async fn keep(self: Arc<Self>, at: String, mut wanted: watch::Receiver<Want>) {
        let mut backoff = Backoff::new(100, 5000);
        loop {
            if wanted.wait_for(|want| *want == Want::Take).await.is_err() {
                return;
            }
            let began = Instant::now();
            let ended = self.link(&at, &mut wanted, backoff.patience()).await;
            // A dial that failed counts as tried; a link that ended, or was let go, does not.
            let failed = self.tried.lock().unwrap().get(&at) != Some(&true);
            self.tell(&at, ended.is_err() && failed);
            if let Err(fault) = ended {
                eprintln!("{at}: {fault}");
                if !failed && began.elapsed() >= LASTED {
                    backoff.reset();
                    continue;
                }
                if fault.to_string().contains("channel") {
                    let (settings, name) = (self.answers.settings.clone(), self.source.clone());
                    tokio::spawn(async move { register::register(&settings, &[name]).await });
                }
                tokio::select! {
                    _ = sleep(backoff.next()) => (),
                    _ = wanted.changed() => (),
                }
            }
        }
    }

    async fn link(&self, at: &str, wanted: &mut watch::Receiver<Want>, patience: Duration) -> Result<(), Fault> {
        let settings = &self.answers.settings;
        let connection = settings.dial(at, false, patience).await?;
        let opened = timeout(patience, async {
            let channel = connection.open_channel(None).await?;
            channel.register_callback(Callbacks::default()).await?;
            channel.basic_qos(BasicQosArguments::new(0, self.prefetch, false)).await?;
            let consume = BasicConsumeArguments::new(&self.queue, "mb");
            let (_, messages) = channel.basic_consume_rx(consume).await?;
            Ok::<_, Fault>((channel, messages))
        });
        let (channel, mut messages) = opened.await?.map_err(|fault| format!("channel: {fault}"))?;
        self.tell(at, true);
        let (link, mut asks) = mpsc::unbounded_channel::<Ask>();
        let mut held = 0;
        loop {
            tokio::select! {
                message = messages.recv() => {
                    self.hand_out(at, message.ok_or("the link ended")?, &link);
                    held += 1;
                }
                Some(ask) = asks.recv() => held -= ack(&channel, ask).await?,
                _ = wanted.changed() => if *wanted.borrow() != Want::Take { break },
            }
        }
        timeout(HANG_UP, channel.basic_cancel(BasicCancelArguments::new("mb"))).await??;
        while let Some(message) = messages.recv().await {
            if *wanted.borrow() == Want::Stop {
                let tag = message.deliver.as_ref().map_or(0, |deliver| deliver.delivery_tag());
                channel.basic_nack(BasicNackArguments::new(tag, false, true)).await?;
            } else {
                self.hand_out(at, message, &link);
                held += 1;
            }
        }
        let began = Instant::now();
        while held > 0 && began.elapsed() < LET_GO && connection.is_open() {
            if let Ok(Some(ask)) = timeout(Duration::from_millis(200), asks.recv()).await {
                held -= ack(&channel, ask).await?;
            }
        }
        drop(asks);
        hang_up(channel, connection).await;
        Ok(())
    }

    fn hand_out(&self, at: &str, message: ConsumerMessage, link: &mpsc::UnboundedSender<Ask>) {
        let (properties, body) = (message.basic_properties.unwrap_or_default(), message.content.unwrap_or_default());
        let tag = message.deliver.map_or(0, |deliver| deliver.delivery_tag());
        let is_batch = properties.content_type().is_some_and(|text| text == batch::CONTENT_TYPE);
        let row = if is_batch { batch::entries(&body) } else { None };
        let is_broken = is_batch && row.is_none();
        let row = row.unwrap_or_else(|| vec![(properties.clone(), body)]);
        let left = Arc::new(AtomicUsize::new(row.len()));
        for (mut entry, body) in row {
            if let (None, Some(sent)) = (entry.timestamp(), properties.timestamp()) {
                entry.with_timestamp(sent);
            }
            let (queue, park, broker) = (self.queue.clone(), self.park.clone(), at.to_string());
            let (link, left) = (link.clone(), left.clone());
            let delivery = Delivery { properties: entry, body, broker, queue, park, tag, link, left };
            if is_broken {
                let answers = self.answers.clone();
                tokio::spawn(async move { answers.park(&delivery, "a batch that cannot be read").await });
            } else {
                let _ = self.out.send(delivery);
            }
        }
    }
}

async fn ack(channel: &Channel, (tag, done): Ask) -> Result<usize, Fault> {
    channel.basic_ack(BasicAckArguments::new(tag, false)).await?;
    let _ = done.send(true);
    Ok(1)
}

/// Close the channel first: a connection that is closed right behind an ack may take the ack with it.
pub async fn hang_up(channel: Channel, connection: Connection) {
    let _ = timeout(HANG_UP, channel.close()).await;
    let _ = timeout(HANG_UP, connection.close()).await;
}
