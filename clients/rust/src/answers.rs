//! Answers that are copies: a delivery is tried again later, or parked. The copy is confirmed before the ack.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::{SystemTime, UNIX_EPOCH};

use amqprs::{BasicProperties, FieldTable, FieldValue};

use crate::consumer::Delivery;
use crate::publisher::{Outcome, Publisher};
use crate::register::register;
use crate::settings::Settings;

pub const LADDER_MS: [u64; 21] = [
    1000, 2000, 5000, 10_000, 20_000, 30_000, 60_000, 120_000, 300_000, 600_000, 1_200_000, 1_800_000, 3_600_000,
    7_200_000, 14_400_000, 28_800_000, 43_200_000, 86_400_000, 172_800_000, 345_600_000, 604_800_000,
];
const REASON_BYTES_MAX: usize = 1024;

pub fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

/// Value of an integer header, of whatever type.
pub fn int(headers: &FieldTable, name: &str) -> Option<i64> {
    match headers.get(&name.try_into().ok()?)? {
        FieldValue::b(n) => Some(i64::from(*n)),
        FieldValue::B(n) => Some(i64::from(*n)),
        FieldValue::s(n) => Some(i64::from(*n)),
        FieldValue::u(n) => Some(i64::from(*n)),
        FieldValue::I(n) => Some(i64::from(*n)),
        FieldValue::i(n) => Some(i64::from(*n)),
        FieldValue::l(n) => Some(*n),
        _ => None,
    }
}

pub fn set(headers: &mut FieldTable, name: &str, value: FieldValue) {
    let name = name.try_into().expect("short");
    headers.remove(&name);
    headers.insert(name, value);
}

fn set_int(headers: &mut FieldTable, name: &str, value: i64) {
    set(headers, name, FieldValue::l(value));
}

fn set_text(headers: &mut FieldTable, name: &str, text: &str) {
    let end = (0..=text.len().min(REASON_BYTES_MAX)).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    set(headers, name, FieldValue::S(text[..end].try_into().expect("short")));
}

pub struct Answers {
    pub settings: Arc<Settings>,
    pub publisher: Arc<Publisher>,
    pub steps: Mutex<HashSet<u64>>,
}

impl Answers {
    /// Have it come again after `delay_ms`, rounded up to a step; true when copy and ack are done.
    pub async fn retry(&self, delivery: &Delivery, delay_ms: u64, reason: &str) -> bool {
        let mut headers = delivery.headers();
        set_int(&mut headers, "mb-attempt", delivery.attempt() + 1);
        set_int(&mut headers, "mb-first-ms", delivery.first_ms());
        set_text(&mut headers, "mb-retry-reason", reason);
        let mut exchange = String::new();
        if delay_ms > 0 {
            let step = LADDER_MS.iter().copied().find(|step| *step >= delay_ms).unwrap_or(LADDER_MS[20]);
            let known = self.steps.lock().unwrap().contains(&step);
            if !known && register(&self.settings, &[format!("delay:{step}")]).await.is_err() {
                return false;
            }
            self.steps.lock().unwrap().insert(step);
            exchange = format!("mb.delay/{step}");
        }
        self.copy(delivery, exchange, &delivery.queue, headers).await
    }

    /// Put it into the parking queue of its subscription; true when copy and ack are done.
    pub async fn park(&self, delivery: &Delivery, reason: &str) -> bool {
        let mut headers = delivery.headers();
        headers.remove(&"mb-retry-reason".try_into().expect("short"));
        set_text(&mut headers, "mb-park-reason", reason);
        set_text(&mut headers, "mb-park-broker", &delivery.broker);
        set_int(&mut headers, "mb-park-attempts", delivery.attempt());
        set_int(&mut headers, "mb-park-first-ms", delivery.first_ms());
        set_int(&mut headers, "mb-park-ms", now_ms() as i64);
        self.copy(delivery, String::new(), &delivery.park, headers).await
    }

    async fn copy(&self, delivery: &Delivery, exchange: String, key: &str, headers: FieldTable) -> bool {
        let from = &delivery.properties;
        let mut made = BasicProperties::default();
        made.with_headers(headers).with_delivery_mode(2).with_timestamp(now_ms() / 1000);
        from.message_id().map(|text| _ = made.with_message_id(text));
        from.content_type().map(|text| _ = made.with_content_type(text));
        from.content_encoding().map(|text| _ = made.with_content_encoding(text));
        from.priority().map(|number| _ = made.with_priority(number));
        from.correlation_id().map(|text| _ = made.with_correlation_id(text));
        from.reply_to().map(|text| _ = made.with_reply_to(text));
        from.message_type().map(|text| _ = made.with_message_type(text));
        let copied = self.publisher.publish(exchange, key.to_string(), made, delivery.body.clone()).await;
        copied == Outcome::Confirmed && delivery.ack().await
    }
}
