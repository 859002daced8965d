//! Clients that send on a schedule whatever becomes of their last request, up to a bound, and each of whose requests is accounted for, and watches.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use futures_util::StreamExt;
use tokio::{
    task::JoinSet,
    time::{Instant, MissedTickBehavior, interval},
};

/// Each client sends a request so often.
const EVERY: Duration = Duration::from_millis(30);
/// A client has so many requests open at most: on a machine that is busy otherwise more would be answered later still,
/// and in the end refused by fairness.
const OPEN_MAX: usize = 16;

/// Where requests go: what a load balancer would say.
pub(crate) type Balancer = Arc<dyn Fn() -> String + Send + Sync>;

/// What became of the requests.
#[derive(Debug, Default)]
pub(crate) struct Book {
    /// Answered 200 with the right content, by target.
    pub(crate) good: BTreeMap<String, usize>,
    /// Answered 503 with `Retry-After`: when, and by whom.
    pub(crate) refused: Vec<(Instant, String)>,
    /// Everything else.
    pub(crate) failed: Vec<String>,
    /// Watches that ended in good order.
    pub(crate) ended: usize,
    pub(crate) events: usize,
}

/// Running clients.
pub(crate) struct Load {
    book: Arc<Mutex<Book>>,
    sent: Arc<AtomicUsize>,
    stop: Arc<AtomicBool>,
    tasks: JoinSet<()>,
}

/// A client that sends again only what a GOAWAY says was not touched, as RFC 9113 section 6.8 has it and Go's client
/// does: reqwest's default.
pub(crate) fn client(ca: &str, identity: Option<&(String, String)>, is_h2: bool) -> reqwest::Client {
    let mut builder = reqwest::Client::builder()
        .tls_certs_only([reqwest::Certificate::from_pem(ca.as_bytes()).unwrap()])
        .tls_info(true)
        .timeout(Duration::from_secs(60));
    if let Some((certificate, key)) = identity {
        builder = builder.identity(reqwest::Identity::from_pem((certificate.clone() + key).as_bytes()).unwrap());
    }
    // Otherwise ALPN says HTTP/2.
    if is_h2 { builder } else { builder.http1_only() }.build().unwrap()
}

impl Load {
    pub(crate) fn new() -> Self {
        Self { book: Arc::default(), sent: Arc::default(), stop: Arc::default(), tasks: JoinSet::new() }
    }

    /// Answers so far.
    pub(crate) fn good(&self) -> usize {
        self.book.lock().unwrap().good.values().sum()
    }

    pub(crate) fn events(&self) -> usize {
        self.book.lock().unwrap().events
    }

    /// One client: every request goes where `balancer` says at that moment. With `gives_up` it stops when it is refused.
    pub(crate) fn requests(&mut self, number: usize, client: reqwest::Client, balancer: &Balancer, gives_up: bool) {
        let (book, sent, stop, balancer) = (self.book.clone(), self.sent.clone(), self.stop.clone(), balancer.clone());
        self.tasks.spawn(async move {
            let mut ticks = interval(EVERY);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            let (mut open, told) = (JoinSet::new(), Arc::new(AtomicBool::new(false)));
            for n in 0.. {
                ticks.tick().await;
                if stop.load(SeqCst) || (gives_up && told.load(SeqCst)) {
                    break;
                }
                while open.try_join_next().is_some() {}
                if open.len() >= OPEN_MAX {
                    open.join_next().await;
                }
                sent.fetch_add(1, SeqCst);
                let (client, target, book, told) = (client.clone(), balancer(), book.clone(), told.clone());
                open.spawn(async move {
                    let query = format!("client={number}&request={n}{}", if n % 7 == 0 { "&slow=50" } else { "" });
                    let outcome = ask(&client, &target, &query, n % 5 == 0).await;
                    let mut book = book.lock().unwrap();
                    match outcome {
                        Ok(true) => *book.good.entry(target).or_default() += 1,
                        Ok(false) => {
                            told.store(true, SeqCst);
                            book.refused.push((Instant::now(), target));
                        }
                        Err(why) => book.failed.push(format!("{target} {query}: {why}")),
                    }
                });
            }
            open.join_all().await;
        });
    }

    /// One watch, begun again where `balancer` says when it has ended in good order.
    pub(crate) fn watch(&mut self, number: usize, client: reqwest::Client, balancer: &Balancer) {
        let (book, stop, balancer) = (self.book.clone(), self.stop.clone(), balancer.clone());
        self.tasks.spawn(async move {
            while !stop.load(SeqCst) {
                let target = balancer();
                let url = format!("{target}/clusters/team-{number}/api/v1/pods?watch=true");
                // Watches have no time limit.
                let answer = client.get(&url).timeout(Duration::from_secs(3600)).send().await;
                let answer = match answer {
                    Ok(answer) if answer.status() == 200 => answer,
                    Ok(answer) if is_refusal(&answer) => {
                        book.lock().unwrap().refused.push((Instant::now(), target));
                        tokio::time::sleep(Duration::from_millis(200)).await;
                        continue;
                    }
                    other => {
                        book.lock().unwrap().failed.push(format!("watch of {target}: {other:?}"));
                        return;
                    }
                };
                let mut events = answer.bytes_stream();
                loop {
                    match events.next().await {
                        None => break book.lock().unwrap().ended += 1,
                        Some(Ok(_)) if stop.load(SeqCst) => return,
                        Some(Ok(_)) => book.lock().unwrap().events += 1,
                        Some(Err(error)) => {
                            book.lock().unwrap().failed.push(format!("watch of {target} broke: {error:?}"));
                            return;
                        }
                    }
                }
            }
        });
    }

    /// Lets every request finish. Each one sent is in the book exactly once.
    pub(crate) async fn stop(mut self) -> Book {
        self.stop.store(true, SeqCst);
        while let Some(task) = self.tasks.join_next().await {
            task.unwrap();
        }
        let mut book = self.book.lock().unwrap();
        std::mem::take(&mut *book)
    }

    pub(crate) fn sent(&self) -> usize {
        self.sent.load(SeqCst)
    }
}

/// `Ok(false)`: refused for now.
async fn ask(client: &reqwest::Client, target: &str, query: &str, is_write: bool) -> Result<bool, String> {
    let url = format!("{target}/clusters/team-a/api/v1/namespaces/x/configmaps?{query}");
    let request = if is_write { client.post(&url).body("{\"data\":{}}") } else { client.get(&url) };
    let answer = request.send().await.map_err(|error| format!("{error:?}"))?;
    if is_refusal(&answer) {
        return Ok(false);
    }
    let status = answer.status();
    let text = answer.text().await.map_err(|error| format!("{status}, then {error:?}"))?;
    match status.as_u16() {
        200 if text.contains(&format!("\"{query}\"")) => Ok(true),
        _ => Err(format!("{status} {text}")),
    }
}

fn is_refusal(answer: &reqwest::Response) -> bool {
    answer.status() == 503 && answer.headers().contains_key("retry-after")
}
