//! The client under the conformance kit: orders in, events out, one JSON object a line.

mod answers;
mod batch;
mod consumer;
mod list;
mod publisher;
mod register;
mod settings;

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use amqprs::{BasicProperties, FieldArray, FieldTable, FieldValue};
use serde_json::{json, Value};
use sha2::Digest;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::signal::unix::{signal, SignalKind};
use tokio::sync::mpsc;

use answers::{now_ms, Answers};
use consumer::{Consumer, Delivery};
use publisher::{Outcome, Publisher};

const STOP_WITHIN: Duration = Duration::from_secs(10);

fn to_json(value: &FieldValue) -> Value {
    match value {
        FieldValue::t(yes) => json!(yes),
        FieldValue::b(n) => json!(n),
        FieldValue::B(n) => json!(n),
        FieldValue::s(n) => json!(n),
        FieldValue::u(n) => json!(n),
        FieldValue::I(n) => json!(n),
        FieldValue::i(n) => json!(n),
        FieldValue::l(n) => json!(n),
        FieldValue::f(n) => json!(n),
        FieldValue::d(n) => json!(n),
        FieldValue::T(seconds) => json!(seconds),
        FieldValue::S(text) => json!(text.as_ref()),
        FieldValue::A(values) => Vec::from(values.clone()).iter().map(to_json).collect(),
        FieldValue::F(table) => table_json(table),
        FieldValue::V => Value::Null,
        FieldValue::D(_) | FieldValue::x(_) => json!(value.to_string()),
    }
}

fn table_json(table: &FieldTable) -> Value {
    table.as_ref().iter().map(|(name, value)| (name.to_string(), to_json(value))).collect()
}

fn from_json(value: &Value) -> FieldValue {
    match value {
        Value::Null => FieldValue::V,
        Value::Bool(yes) => FieldValue::t(*yes),
        Value::Number(n) => n.as_i64().map_or_else(|| FieldValue::d(n.as_f64().unwrap_or(0.0)), FieldValue::l),
        Value::String(text) => FieldValue::S(text.as_str().try_into().expect("below 4 GiB")),
        Value::Array(all) => FieldValue::A(FieldArray::try_from(all.iter().map(from_json).collect::<Vec<_>>()).expect("below 4 GiB")),
        Value::Object(_) => FieldValue::F(table_of(value)),
    }
}

fn table_of(value: &Value) -> FieldTable {
    let mut table = FieldTable::new();
    for (name, value) in value.as_object().into_iter().flatten() {
        answers::set(&mut table, name, from_json(value));
    }
    table
}

struct Driver {
    answers: Arc<Answers>,
    held: Mutex<HashMap<String, Delivery>>,
    consumers: Mutex<Vec<Arc<Consumer>>>,
    deliveries: mpsc::UnboundedSender<Delivery>,
    /// Outcomes and answers that are still to be told.
    under_way: AtomicUsize,
}

impl Driver {
    fn text<'a>(order: &'a Value, key: &str) -> &'a str {
        order[key].as_str().unwrap_or_default()
    }

    fn order(self: &Arc<Self>, order: &Value) {
        match Self::text(order, "do") {
            "register" => self.register(order.clone()),
            "publish" => self.publish(order),
            "consume" => {
                let (from, prefetch) = (Self::text(order, "from"), order["prefetch"].as_u64().unwrap_or(200) as u16);
                match Consumer::start(self.answers.clone(), from, prefetch, self.deliveries.clone()) {
                    Some(started) => self.consumers.lock().unwrap().push(started),
                    None => eprintln!("no such source: {from:?}"),
                }
            }
            "ack" | "retry" | "park" => self.answer(order.clone()),
            other => eprintln!("no such order: {other:?}"),
        }
    }

    /// Tell what comes of it, at some time before the end.
    fn tell_later(self: &Arc<Self>, event: impl std::future::Future<Output = Value> + Send + 'static) {
        self.under_way.fetch_add(1, Ordering::AcqRel);
        let driver = self.clone();
        tokio::spawn(async move {
            println!("{}", event.await);
            driver.under_way.fetch_sub(1, Ordering::AcqRel);
        });
    }

    fn register(self: &Arc<Self>, order: Value) {
        let driver = self.clone();
        let names = order["wanted"].as_array().into_iter().flatten();
        let wanted: Vec<String> = names.filter_map(|name| name.as_str().map(String::from)).collect();
        self.tell_later(async move {
            match register::register(&driver.answers.settings, &wanted).await {
                Ok(()) => json!({"registered": true}),
                Err((is_final, why)) => json!({"registered": false, "final": is_final, "why": why}),
            }
        });
    }

    fn publish(self: &Arc<Self>, order: &Value) {
        let exchange = settings::exchange(Self::text(order, "to"));
        let mut headers = table_of(&order["headers"]);
        if !Self::text(order, "key").is_empty() {
            answers::set(&mut headers, "mb-key", from_json(&order["key"]));
        }
        for id in order["ids"].as_array().into_iter().flatten().filter_map(Value::as_str) {
            let id = id.to_string();
            let Some(exchange) = exchange.clone() else {
                println!("{}", json!({"id": id, "outcome": "refused"}));
                continue;
            };
            let size = order["bytes"].as_u64().unwrap_or(0) as usize;
            let body = match size {
                0 => id.clone().into_bytes(),
                size => id.bytes().cycle().take(size).collect(),
            };
            let mut properties = BasicProperties::default();
            properties.with_message_id(&id).with_content_type("text/plain; charset=utf-8").with_delivery_mode(2);
            properties.with_timestamp(now_ms() / 1000).with_headers(headers.clone());
            let outcome = self.answers.publisher.publish(exchange, String::new(), properties, body);
            self.tell_later(async move {
                let told = match outcome.await {
                    Outcome::Confirmed => "confirmed",
                    Outcome::Refused => "refused",
                    Outcome::Unroutable => "unroutable",
                    Outcome::Unknown => "unknown",
                };
                json!({"id": id, "outcome": told})
            });
        }
    }

    fn answer(self: &Arc<Self>, order: Value) {
        let tag = Self::text(&order, "tag").to_string();
        let delivery = self.held.lock().unwrap().remove(&tag);
        let driver = self.clone();
        self.tell_later(async move {
            let reason = Self::text(&order, "reason");
            let ok = match (&delivery, Self::text(&order, "do")) {
                (None, _) => false,
                (Some(held), "ack") => held.ack().await,
                (Some(held), "park") => driver.answers.park(held, reason).await,
                (Some(held), _) => driver.answers.retry(held, order["delay_ms"].as_u64().unwrap_or(0), reason).await,
            };
            if let (false, Some(held)) = (ok, delivery) {
                driver.held.lock().unwrap().insert(tag.clone(), held);
            }
            json!({"answered": tag, "ok": ok})
        });
    }

    fn delivered(&self, tag: usize, delivery: Delivery) {
        let headers = delivery.headers();
        let key = headers.get(&"mb-key".try_into().expect("short")).map_or(json!(""), to_json);
        let event = json!({
            "delivered": delivery.properties.message_id(), "tag": tag.to_string(), "broker": delivery.broker, "key": key,
            "headers": table_json(&headers), "content_type": delivery.properties.content_type(),
            "attempt": delivery.attempt(), "sha256": format!("{:x}", sha2::Sha256::digest(&delivery.body)),
        });
        self.held.lock().unwrap().insert(tag.to_string(), delivery);
        println!("{event}");
    }
}

#[tokio::main(worker_threads = 2)]
async fn main() {
    rustls::crypto::ring::default_provider().install_default().expect("the first one");
    let settings = Arc::new(settings::Settings::from_env());
    let publisher = Publisher::start(settings.clone());
    let answers = Arc::new(Answers { settings, publisher, steps: Mutex::default() });
    let (deliveries, mut delivered) = mpsc::unbounded_channel();
    let (held, consumers, under_way) = (Mutex::default(), Mutex::default(), AtomicUsize::new(0));
    let driver = Arc::new(Driver { answers, held, consumers, deliveries, under_way });
    let mut terminated = signal(SignalKind::terminate()).expect("signals");
    let mut orders = BufReader::new(tokio::io::stdin()).lines();
    let (mut stopped, mut tag, mut is_open): (Option<Instant>, usize, bool) = (None, 0, true);
    println!("{}", json!({"ready": true, "client": "rust"}));
    loop {
        let mut stop = false;
        tokio::select! {
            // Answers come while it stops, too.
            line = orders.next_line(), if is_open => match line {
                Ok(Some(line)) => match serde_json::from_str::<Value>(&line) {
                    Ok(order) if order["do"] == "stop" => stop = true,
                    Ok(order) => driver.order(&order),
                    Err(fault) => eprintln!("no order: {fault}"),
                },
                _ => (stop, is_open) = (true, false),
            },
            Some(delivery) = delivered.recv() => {
                tag += 1;
                driver.delivered(tag, delivery);
            }
            _ = terminated.recv() => stop = true,
            _ = tokio::time::sleep(Duration::from_millis(50)), if stopped.is_some() => (),
        }
        if stop && stopped.is_none() {
            stopped = Some(Instant::now());
            driver.consumers.lock().unwrap().iter().for_each(|each| each.stop());
        }
        if let Some(since) = stopped {
            let is_done = driver.under_way.load(Ordering::Acquire) == 0 && driver.held.lock().unwrap().is_empty();
            if is_done || since.elapsed() > STOP_WITHIN {
                break;
            }
        }
    }
    // The links close their channels behind the last acks.
    tokio::time::sleep(Duration::from_millis(500)).await;
    std::process::exit(0);
}
