//! Asking agents for topics and subscriptions.

use std::time::{Duration, Instant};

use serde_json::{json, Value};

use crate::settings::{is_wanted, Backoff, Fault, Settings};

const WITHIN: Duration = Duration::from_secs(60);

/// Ask until it is complete. Err: whether asking again does not help, and why.
pub async fn register(settings: &Settings, wanted: &[String]) -> Result<(), (bool, String)> {
    if let Some(bad) = wanted.iter().find(|name| !is_wanted(name)) {
        return Err((true, format!("{bad:?} is no name")));
    }
    let (began, mut backoff) = (Instant::now(), Backoff::new(50, 1000));
    loop {
        let why = match ask(settings, wanted).await {
            Ok((200, answer)) if answer["complete"] == json!(true) => return Ok(()),
            Ok((status, answer)) => {
                let again = status == 200 || status >= 500 || (status == 409 && answer["mismatch"] != json!(true));
                let why = format!("{status} {answer}");
                if !again {
                    return Err((true, why));
                }
                why
            }
            Err(fault) => fault.to_string(),
        };
        if began.elapsed() > WITHIN {
            return Err((false, why));
        }
        tokio::time::sleep(backoff.next()).await;
    }
}

async fn ask(settings: &Settings, wanted: &[String]) -> Result<(u16, Value), Fault> {
    let (http, url) = settings.http("/topology")?;
    let body = json!({"wanted": wanted, "alive": true}).to_string();
    let asked = http.post(url).basic_auth(&settings.user, Some(settings.password()));
    let asked = asked.header("content-type", "application/json").timeout(Duration::from_secs(30));
    let answer = asked.body(body).send().await?;
    let status = answer.status().as_u16();
    Ok((status, serde_json::from_str(&answer.text().await?).unwrap_or(Value::Null)))
}
