//! Calls to the members of an etcd cluster.
//!
//! All calls go to one member for as long as it answers; then the next one that accepts a connection is taken. What
//! only reads is asked again until [`PATIENCE`] is over. A write is sent once: when its answer is lost it may have been
//! carried out, and asking again would find the caller's own object in its way.

use std::{
    str::FromStr,
    time::{Duration, Instant},
};

use http::uri::PathAndQuery;
use tokio::{runtime::Handle, sync::Mutex};
use tonic::{
    Code, Request, Status, Streaming,
    client::Grpc,
    metadata::{Ascii, MetadataValue},
    transport::{Channel, Endpoint},
};
use tonic_prost::ProstCodec;

use super::{
    options::{Credentials, Options, SetupError},
    proto::{AuthenticateRequest, AuthenticateResponse, Empty, StatusResponse, WatchRequest, WatchResponse},
};
use crate::StoreError;

/// How long a call waits for a member to be there, and a read for an answer.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);
/// How long one member is waited for.
const CALL_TIMEOUT: Duration = Duration::from_secs(5);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Pings that tell whether a silent member still lives.
const PING_EVERY: Duration = Duration::from_secs(5);
const PING_TIMEOUT: Duration = Duration::from_secs(3);
/// Pauses between attempts, the shortest and the longest.
const PAUSE: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(500));
/// Largest answer that is taken. etcd's own limit of a value is 1.5 MiB.
const ANSWER_BYTES_MAX: usize = 64 << 20;

/// See the module.
pub(super) struct Client {
    endpoints: Vec<Endpoint>,
    credentials: Option<Credentials>,
    current: Mutex<Current>,
    /// Connections are driven here, whichever thread needed them first.
    runtime: Handle,
}

struct Current {
    connection: Option<Connection>,
    /// The member to try next.
    next: usize,
    /// Connections made so far.
    made: u64,
}

/// What is said of a member that nothing was heard of, or nothing that etcd would say.
pub(super) const UNREACHABLE: &str = "cannot be reached";
pub(super) const LATE: &str = "in time";
pub(super) const BROKEN: &str = "the connection broke off";
pub(super) const STRANGE: &str = "answers as no etcd does";

/// An open connection to one member.
#[derive(Clone)]
pub(super) struct Connection {
    id: u64,
    channel: Channel,
    token: Option<MetadataValue<Ascii>>,
    /// Whether the member tells the progress of a watch when asked, and truly: earlier releases could report it before
    /// the changes (etcd 3.4.31, 3.5.13).
    pub(super) tells_progress: bool,
}

impl Client {
    pub(super) fn new(options: &Options) -> Result<Self, SetupError> {
        let endpoints = options.endpoints()?;
        let endpoints = endpoints.into_iter().map(|endpoint| {
            let pinged = endpoint.http2_keep_alive_interval(PING_EVERY).keep_alive_timeout(PING_TIMEOUT);
            pinged.keep_alive_while_idle(true).connect_timeout(CONNECT_TIMEOUT).tcp_nodelay(true)
        });
        Ok(Self {
            endpoints: endpoints.collect(),
            credentials: options.credentials.clone(),
            current: Mutex::new(Current { connection: None, next: 0, made: 0 }),
            runtime: Handle::current(),
        })
    }

    /// The present connection, or a new one to the first member that accepts it.
    pub(super) async fn connection(&self) -> Result<Connection, StoreError> {
        let (start, mut pause) = (Instant::now(), PAUSE.0);
        loop {
            let failed = match self.try_connection().await {
                Ok(connection) => return Ok(connection),
                // Waiting does not make a wrong password right.
                Err(status) if !is_passing(&status) => return Err(explain(&status)),
                Err(status) => status,
            };
            if start.elapsed() + pause > PATIENCE {
                return Err(explain(&failed));
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSE.1);
        }
    }

    async fn try_connection(&self) -> Result<Connection, Status> {
        let mut current = self.current.lock().await;
        if let Some(connection) = &current.connection {
            return Ok(connection.clone());
        }
        let mut failed = Status::unavailable("no member is known");
        for _ in 0..self.endpoints.len() {
            let Some(endpoint) = self.endpoints.get(current.next % self.endpoints.len()).cloned() else { break };
            let address = endpoint.uri().to_string();
            let (credentials, id) = (self.credentials.clone(), current.made);
            let connecting = self.runtime.spawn(async move { Connection::open(&endpoint, credentials, id).await });
            match connecting.await.map_err(|e| Status::internal(e.to_string())).flatten() {
                Ok(connection) => {
                    tracing::debug!(member = address, "connected to etcd");
                    current.made += 1;
                    current.connection = Some(connection.clone());
                    return Ok(connection);
                }
                Err(status) => {
                    tracing::debug!(member = address, %status, "this member of etcd is not to be had");
                    failed = Status::new(
                        status.code(),
                        format!("{address} {}", status.message().trim_start_matches("etcdserver: ")),
                    );
                    current.next += 1;
                }
            }
        }
        Err(failed)
    }

    /// Takes note that a connection is of no use any more: the next call goes to the next member.
    pub(super) async fn lost(&self, connection: &Connection) {
        let mut current = self.current.lock().await;
        if current.connection.as_ref().is_some_and(|c| c.id == connection.id) {
            current.connection = None;
            current.next += 1;
        }
    }

    /// Asks until there is an answer.
    ///
    /// # Errors
    /// What etcd says, unless it passes; then `Unavailable` in the end.
    pub(super) async fn read<Q, A>(&self, method: &'static str, question: Q) -> Result<A, Status>
    where
        Q: prost::Message + Clone + 'static,
        A: prost::Message + Default + 'static,
    {
        let (start, mut pause) = (Instant::now(), PAUSE.0);
        loop {
            let connection = self.connection().await.map_err(|e| Status::unavailable(text(&e)))?;
            let failed = match connection.call(method, question.clone()).await {
                Err(status) if is_passing(&status) => status,
                done => return done,
            };
            self.lost(&connection).await;
            if start.elapsed() + pause > PATIENCE {
                return Err(failed);
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSE.1);
        }
    }

    /// Sends a request once, as soon as there is a member to send it to.
    ///
    /// # Errors
    /// See [`Failed`].
    pub(super) async fn write<Q, A>(&self, method: &'static str, request: Q) -> Result<A, Failed>
    where
        Q: prost::Message + Clone + 'static,
        A: prost::Message + Default + 'static,
    {
        let mut again = true;
        loop {
            let connection = self.connection().await.map_err(Failed::Unsent)?;
            let status = match connection.call(method, request.clone()).await {
                Ok(answer) => return Ok(answer),
                Err(status) => status,
            };
            if is_passing(&status) {
                self.lost(&connection).await;
            }
            // A token that has expired was looked at before the request.
            if !(again && status.code() == Code::Unauthenticated) {
                return Err(Failed::Sent(status));
            }
            again = false;
        }
    }
}

impl Connection {
    async fn open(endpoint: &Endpoint, credentials: Option<Credentials>, id: u64) -> Result<Self, Status> {
        let connect = tokio::time::timeout(CONNECT_TIMEOUT * 2, endpoint.connect()).await;
        let channel = connect
            .map_err(|_| Status::unavailable(format!("accepts no connection {LATE}")))?
            .map_err(|e| Status::unavailable(format!("{UNREACHABLE}: {}", chain(&e))))?;
        let mut connection = Self { id, channel, token: None, tells_progress: false };
        if let Some(Credentials { user, password }) = credentials {
            let question = AuthenticateRequest { name: user, password };
            let answer: AuthenticateResponse =
                connection.call("/etcdserverpb.Auth/Authenticate", question).await.map_err(strange)?;
            let token = MetadataValue::from_str(&answer.token);
            connection.token = Some(token.map_err(|_| Status::internal("answered with a token that is none"))?);
        }
        let status: StatusResponse =
            connection.call("/etcdserverpb.Maintenance/Status", Empty {}).await.map_err(strange)?;
        connection.tells_progress = tells_progress(&status.version);
        Ok(connection)
    }

    /// One call to this member.
    pub(super) async fn call<Q, A>(&self, method: &'static str, question: Q) -> Result<A, Status>
    where
        Q: prost::Message + 'static,
        A: prost::Message + Default + 'static,
    {
        let mut grpc = self.grpc();
        let question = self.request(question);
        let call = async {
            grpc.ready().await.map_err(|e| broken(Code::Unavailable, &e))?;
            grpc.unary(question, PathAndQuery::from_static(method), ProstCodec::default()).await.map_err(told)
        };
        let answer = tokio::time::timeout(CALL_TIMEOUT, call).await;
        answer
            .unwrap_or_else(|_| Err(Status::unavailable(format!("no answer {LATE}"))))
            .map(tonic::Response::into_inner)
    }

    /// Opens a watch. Ends, rather than lag behind for ever, when this member has no leader.
    pub(super) async fn watch(
        &self,
        requests: impl futures_util::Stream<Item = WatchRequest> + Send + 'static,
    ) -> Result<Streaming<WatchResponse>, Status> {
        let mut grpc = self.grpc();
        let mut question = self.request(requests);
        question.metadata_mut().insert("hasleader", MetadataValue::from_static("true"));
        let path = PathAndQuery::from_static("/etcdserverpb.Watch/Watch");
        let call = async {
            grpc.ready().await.map_err(|e| broken(Code::Unavailable, &e))?;
            grpc.streaming(question, path, ProstCodec::default()).await.map_err(told)
        };
        let answer = tokio::time::timeout(CALL_TIMEOUT, call).await;
        answer
            .unwrap_or_else(|_| Err(Status::unavailable(format!("no answer {LATE}"))))
            .map(tonic::Response::into_inner)
    }

    fn grpc(&self) -> Grpc<Channel> {
        Grpc::new(self.channel.clone()).max_decoding_message_size(ANSWER_BYTES_MAX)
    }

    fn request<T>(&self, content: T) -> Request<T> {
        let mut request = Request::new(content);
        if let Some(token) = &self.token {
            request.metadata_mut().insert("token", token.clone());
        }
        request
    }
}

/// Why a write has no answer, or a bad one.
pub(super) enum Failed {
    /// There was no member to send it to.
    Unsent(StoreError),
    /// What was said; if it is a failure that passes, the write may have been carried out.
    Sent(Status),
}

impl From<Failed> for StoreError {
    fn from(failed: Failed) -> Self {
        match failed {
            Failed::Unsent(error) => error,
            Failed::Sent(status) => match explain(&status) {
                // It was refused at the door.
                Self::Unavailable(reason) if status.code() != Code::ResourceExhausted => Self::Uncertain(reason),
                other => other,
            },
        }
    }
}

/// Whether another member, or the same one a little later, may do what this one did not.
fn is_passing(status: &Status) -> bool {
    matches!(
        status.code(),
        Code::Unavailable | Code::DeadlineExceeded | Code::Cancelled | Code::Unknown | Code::Unauthenticated
    )
}

/// What a failure means to callers of the store. Says nothing of revisions and sizes: see where they are asked for.
pub(super) fn explain(status: &Status) -> StoreError {
    let message = status.message();
    if message.contains("database space exceeded") {
        return StoreError::Full;
    }
    let text = format!("etcd: {}", message.trim_start_matches("etcdserver: "));
    match status.code() {
        Code::Unavailable | Code::DeadlineExceeded | Code::Cancelled | Code::Unknown | Code::ResourceExhausted => {
            StoreError::Unavailable(text.into())
        }
        _ => StoreError::Other(text.into()),
    }
}

/// The reason alone, as [`explain`] found it.
fn text(error: &StoreError) -> String {
    let text = match error {
        StoreError::Unavailable(reason) => reason.to_string(),
        other => other.to_string(),
    };
    text.trim_start_matches("etcd: ").to_owned()
}

/// Whether a status says that the revision asked for is compacted.
pub(super) fn is_compacted(status: &Status) -> bool {
    status.message().contains("required revision has been compacted")
}

fn tells_progress(version: &str) -> bool {
    let mut numbers = version.split(['.', '-', '+']).map(|n| n.parse().unwrap_or(0));
    let mut next = || numbers.next().unwrap_or(0_u32);
    match (next(), next(), next()) {
        (3, 4, patch) => patch >= 31,
        (3, 5, patch) => patch >= 13,
        (major, minor, _) => (major, minor) >= (3, 6),
    }
}

/// The failure of a call: where it is not etcd that speaks, only the causes say why.
fn told(status: Status) -> Status {
    match std::error::Error::source(&status) {
        Some(source) => broken(status.code(), source),
        None => status,
    }
}

fn broken(code: Code, error: &dyn std::error::Error) -> Status {
    Status::new(code, format!("{BROKEN}: {}", chain(error)))
}

/// The failure of a first call: etcd has no reason to use these codes then.
fn strange(status: Status) -> Status {
    match status.code() {
        code @ (Code::Internal | Code::Unimplemented | Code::Unknown) if !status.message().contains(BROKEN) => {
            Status::new(code, format!("{STRANGE}: {}", status.message()))
        }
        _ => status,
    }
}

/// The cause of an error: that of the transport says only "transport error".
fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |e| e.source());
    causes.last().map_or_else(|| error.to_string(), ToString::to_string)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_mended_releases_are_asked_for_progress() {
        let telling = ["3.4.31", "3.5.13", "3.5.21-rc.0", "3.6.0", "3.10.1", "4.0.0"];
        let silent = ["3.3.27", "3.4.23", "3.4.30", "3.5.0", "3.5.12", "", "three"];
        assert!(telling.iter().all(|v| tells_progress(v)));
        assert!(!silent.iter().any(|v| tells_progress(v)));
    }
}
