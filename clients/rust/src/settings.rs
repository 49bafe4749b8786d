//! Settings from the environment, dialling, back-off, names.

use std::env::var;
use std::path::Path;
use std::time::Duration;

use amqprs::connection::{Connection, OpenConnectionArguments};
use amqprs::tls::TlsAdaptor;

pub type Fault = Box<dyn std::error::Error + Send + Sync>;

pub struct Tls {
    pub ca: String,
    pub cert: String,
    pub key: String,
    /// Name that the balancer's certificate must bear; empty: the host that is dialled.
    pub name: String,
}

pub struct Settings {
    pub broker: String,
    pub list_url: String,
    pub user: String,
    pub cluster: String,
    pub client: String,
    pub tls: Option<Tls>,
    password_file: String,
}

impl Settings {
    pub fn from_env() -> Settings {
        let text = |key: &str| var(format!("MESSAGEBUS_{key}")).unwrap_or_default();
        let tls = matches!(text("TLS").as_str(), "true" | "1" | "yes" | "on").then(|| Tls {
            ca: text("TLS_CA_FILE"),
            cert: text("TLS_CERT_FILE"),
            key: text("TLS_KEY_FILE"),
            name: text("TLS_SERVER_NAME"),
        });
        Settings {
            broker: text("BROKER"),
            list_url: text("LIST_URL"),
            user: text("USER"),
            cluster: text("CLUSTER"),
            client: text("CLIENT_ID"),
            password_file: text("PASSWORD_FILE"),
            tls,
        }
    }

    /// Read at each dial and each request: it may have changed.
    pub fn password(&self) -> String {
        let text = std::fs::read_to_string(&self.password_file).unwrap_or_default();
        text.trim_end_matches(['\r', '\n']).to_string()
    }

    /// Open a connection to `host:port`. through_balancer: the certificate's name may have been told.
    pub async fn dial(&self, at: &str, through_balancer: bool, within: Duration) -> Result<Connection, Fault> {
        let (host, port) = at.rsplit_once(':').ok_or("no port")?;
        let bare = host.trim_matches(['[', ']']);
        let mut args = OpenConnectionArguments::new(host, port.parse()?, &self.user, &self.password());
        args.heartbeat(10).connection_name(&self.client);
        if let Some(tls) = &self.tls {
            let told = through_balancer && !tls.name.is_empty();
            let name = if told { &tls.name } else { bare };
            let (ca, cert, key) = (Path::new(&tls.ca), Path::new(&tls.cert), Path::new(&tls.key));
            args.tls_adaptor(TlsAdaptor::with_client_auth(Some(ca), cert, key, name.to_string())?);
        }
        Ok(tokio::time::timeout(within, Connection::open(&args)).await??)
    }

    /// The agent's HTTP client, and the address of a path there.
    pub fn http(&self, path: &str) -> Result<(reqwest::Client, String), Fault> {
        let base = self.list_url.split("/consumer-list").next().unwrap_or_default();
        let mut url = reqwest::Url::parse(base)?;
        let mut builder = reqwest::Client::builder().no_proxy().connect_timeout(Duration::from_secs(3));
        if let Some(tls) = &self.tls {
            let pem = [std::fs::read(&tls.cert)?, std::fs::read(&tls.key)?].concat();
            builder = builder
                .add_root_certificate(reqwest::Certificate::from_pem(&std::fs::read(&tls.ca)?)?)
                .identity(reqwest::Identity::from_pem(&pem)?);
            if !tls.name.is_empty() {
                let port = url.port_or_known_default().unwrap_or(443);
                let host = url.host_str().unwrap_or_default().to_string();
                let mut found = std::net::ToSocketAddrs::to_socket_addrs(&(host.as_str(), port))?;
                // The name is the certificate's alone: agents know their address, not every name of it.
                let own = reqwest::header::HeaderValue::from_str(&format!("{host}:{port}"))?;
                builder = builder
                    .default_headers([(reqwest::header::HOST, own)].into_iter().collect())
                    .resolve(&tls.name, found.next().ok_or("no such host")?);
                url.set_host(Some(&tls.name))?;
            }
        }
        Ok((builder.build()?, format!("{}{path}", url.as_str().trim_end_matches('/'))))
    }
}

/// Waits between tries: doubled with each, at random between half and all.
pub struct Backoff {
    first: Duration,
    most: Duration,
    failures: u32,
}

impl Backoff {
    pub const fn new(first_ms: u64, most_ms: u64) -> Backoff {
        Backoff { first: Duration::from_millis(first_ms), most: Duration::from_millis(most_ms), failures: 0 }
    }

    pub fn next(&mut self) -> Duration {
        let whole = self.first.saturating_mul(1 << self.failures.min(16)).min(self.most);
        self.failures += 1;
        whole.mul_f64(0.5 + fastrand::f64() / 2.0)
    }

    pub fn reset(&mut self) {
        self.failures = 0;
    }

    /// How long a dial may take now: 0.5 s, doubled with each failure, at most 8 s.
    pub fn patience(&self) -> Duration {
        Duration::from_millis(500 << self.failures.min(4))
    }
}

fn is_name(text: &str) -> bool {
    let first = text.bytes().next().is_some_and(|b| b.is_ascii_alphanumeric() || b == b'_');
    let all = text.bytes().all(|b| b.is_ascii_alphanumeric() || b"_.-".contains(&b));
    first && all && text.len() <= 120 && !text.starts_with("amq.") && !text.starts_with("mb.")
}

/// Exchange of a topic or `queue:NAME`; None when the name is not allowed.
pub fn exchange(to: &str) -> Option<String> {
    match to.strip_prefix("queue:") {
        Some(name) => is_name(name).then(|| format!("mb.to/{name}")),
        None => is_name(to).then(|| format!("mb.topic/{to}")),
    }
}

/// Queue and parking queue of `TOPIC/SUBSCRIPTION` or `queue:NAME`; None when the name is not allowed.
pub fn queues(source: &str) -> Option<(String, String)> {
    if let Some(name) = source.strip_prefix("queue:") {
        return is_name(name).then(|| (format!("mb.queue/{name}"), format!("mb.park/{name}")));
    }
    let (topic, own) = source.split_once('/')?;
    (is_name(topic) && is_name(own)).then(|| (format!("mb.sub/{source}"), format!("mb.park/{source}")))
}

/// Is this something that an agent can be asked for?
pub fn is_wanted(name: &str) -> bool {
    match name.strip_prefix("delay:") {
        Some(ms) => ms.parse().is_ok_and(|ms: u64| crate::answers::LADDER_MS.contains(&ms)),
        None => exchange(name).is_some() || queues(name).is_some(),
    }
}
