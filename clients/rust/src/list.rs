//! The consumer list: parsed, kept fresh, and told as applied.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use crate::settings::{Backoff, Fault, Settings};

const BYTES_MAX: usize = 1 << 20;
const WAIT_S: u64 = 30;

#[derive(Clone, Default, Debug, PartialEq)]
pub struct List {
    pub generation: u64,
    pub cluster: String,
    /// `host:port`, and whether it is draining.
    pub brokers: Vec<(String, bool)>,
}

fn is_host(text: &str) -> bool {
    if let Some(inner) = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
        let good = inner.bytes().all(|b| b.is_ascii_hexdigit() || b == b':' || b == b'.');
        return good && (2..=45).contains(&inner.len());
    }
    let end = |b: Option<u8>| b.is_some_and(|b| b.is_ascii_alphanumeric());
    let good = text.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b));
    let labels = text.split('.').all(|label| (1..=63).contains(&label.len()));
    good && labels && text.len() <= 253 && end(text.bytes().next()) && end(text.bytes().last())
}

fn port(text: &str) -> Option<u16> {
    let digits = (1..=5).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_digit());
    text.parse().ok().filter(|port| digits && *port > 0)
}

/// Value of a header `# key: value`; None for any other comment.
fn header<'a>(line: &'a str, key: &str) -> Option<&'a str> {
    let rest = line.strip_prefix('#')?.trim_start_matches(' ').strip_prefix(key)?;
    Some(rest.trim_start_matches(' ').strip_prefix(':')?.trim_matches(' '))
}

/// Parse a list by the grammar of docs/WIRE.md; None when any line is bad.
pub fn parse(body: &[u8]) -> Option<List> {
    let text = std::str::from_utf8(body).ok().filter(|_| body.len() <= BYTES_MAX)?;
    let mut list = List::default();
    let (mut seen, mut generations, mut clusters) = (HashSet::new(), 0, 0);
    for line in text.split('\n').map(|line| line.trim_matches([' ', '\t', '\r'])) {
        if let Some(value) = header(line, "generation") {
            let good = (1..=18).contains(&value.len()) && value.bytes().all(|b| b.is_ascii_digit());
            list.generation = value.parse().ok().filter(|_| good)?;
            generations += 1;
        } else if let Some(value) = header(line, "cluster") {
            let first = value.bytes().next().is_some_and(|b| b.is_ascii_alphanumeric());
            let all = value.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b));
            list.cluster = (first && all && value.len() <= 64).then(|| value.to_string())?;
            clusters += 1;
        }
        let mut words = line.split('#').next().unwrap_or_default().split_ascii_whitespace();
        let Some(at) = words.next() else { continue };
        let (host, number) = match at.rsplit_once(':') {
            Some((host, digits)) if !at.ends_with(']') => (host, port(digits)?),
            _ => (at, 5672),
        };
        let broker = format!("{host}:{number}");
        let mut draining = false;
        for word in words {
            match word.strip_prefix("agent=") {
                Some(digits) => _ = port(digits)?,
                None if word == "draining" => draining = true,
                None => return None,
            }
        }
        if !is_host(host) || !seen.insert(broker.clone()) {
            return None;
        }
        list.brokers.push((broker, draining));
    }
    (generations <= 1 && clusters <= 1 && !list.brokers.is_empty()).then_some(list)
}

/// Keep the list fresh for ever, in `found`. source: the subscription it is asked for, with what is `applied`; empty: none.
pub async fn follow(settings: Arc<Settings>, source: String, found: watch::Sender<List>, mut applied: watch::Receiver<u64>) {
    let mut backoff = Backoff::new(100, 5000);
    loop {
        let told = *applied.borrow_and_update();
        let have = found.borrow().generation;
        let answer = tokio::select! {
            answer = fetch(&settings, &source, have, told) => answer,
            // Operators wait for this word: a request that waits is given up for it.
            Ok(()) = applied.changed() => continue,
        };
        match answer {
            Ok(None) => backoff.reset(),
            Ok(Some(list)) => {
                backoff.reset();
                let older = list.generation < have || (list.generation == have && have > 0);
                let foreign = !settings.cluster.is_empty() && !list.cluster.is_empty() && list.cluster != settings.cluster;
                if older || foreign {
                    tokio::time::sleep(backoff.next()).await;
                } else if *found.borrow() != list {
                    found.send_replace(list);
                }
            }
            Err(fault) => {
                eprintln!("list: {fault}");
                tokio::time::sleep(backoff.next()).await;
            }
        }
    }
}

async fn fetch(settings: &Settings, source: &str, have: u64, applied: u64) -> Result<Option<List>, Fault> {
    let (http, url) = settings.http("/consumer-list")?;
    let (have, wait, applied) = (have.to_string(), WAIT_S.to_string(), applied.to_string());
    let mut asked = http.get(url).timeout(Duration::from_secs(WAIT_S + 10));
    if have != "0" {
        asked = asked.query(&[("generation", &have), ("wait_s", &wait)]);
    }
    if !source.is_empty() {
        // Without a login nobody is counted.
        asked = asked.basic_auth(&settings.user, Some(settings.password()));
        asked = asked.query(&[("client", settings.client.as_str()), ("subscription", source), ("applied", &applied)]);
    }
    let mut answer = asked.send().await?;
    match answer.status().as_u16() {
        304 => return Ok(None),
        200 => (),
        other => return Err(format!("answered {other}").into()),
    }
    let mut body = Vec::new();
    while let Some(part) = answer.chunk().await? {
        body.extend_from_slice(&part);
        if body.len() > BYTES_MAX {
            return Err("larger than 1 MiB".into());
        }
    }
    parse(&body).map(Some).ok_or_else(|| "a bad line".into())
}
