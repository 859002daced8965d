//! A small stand-in for a server: workspaces that are ready at once, objects that are not kept, and answers that
//! can be scripted or withheld.

use std::{
    collections::{BTreeSet, VecDeque},
    convert::Infallible,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

use bytes::Bytes;
use http::{Method, Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use tokio::{net::TcpListener, sync::watch};

use crate::client::Endpoint;

/// Dropped, it still answers: its tasks end with the test's runtime.
pub(crate) struct Stub {
    address: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    frozen: watch::Sender<bool>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    script: VecDeque<(u16, Option<u64>)>,
    workspaces: BTreeSet<String>,
    made: usize,
    traffic: usize,
    connections: usize,
    /// Users other than the workspace's tenant that were seen in tenants' workspaces.
    strangers: BTreeSet<String>,
}

impl Stub {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared { frozen: watch::Sender::new(false), state: Mutex::default() });
        let serving = Arc::clone(&shared);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let shared = Arc::clone(&serving);
                shared.state.lock().unwrap().connections += 1;
                let service = service_fn(move |request| Arc::clone(&shared).serve(request));
                tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
            }
        });
        Self { address, shared }
    }

    pub(crate) fn endpoint(&self) -> Arc<Endpoint> {
        let authority = self.address.to_string();
        Arc::new(Endpoint { address: self.address, authority, tls: None, authorization: None })
    }

    /// Writes a kubeconfig for it.
    pub(crate) fn kubeconfig(&self, directory: &Path) -> PathBuf {
        let path = directory.join("kubeconfig");
        std::fs::write(&path, kubeconfig(&format!("http://{}/clusters/root", self.address))).unwrap();
        path
    }

    /// Withholds all answers for a while.
    pub(crate) fn freeze(&self, frozen: bool) {
        self.shared.frozen.send_replace(frozen);
    }

    /// Status and `Retry-After` of a later answer to a tenant.
    pub(crate) fn answer_next(&self, status: u16, retry_after: Option<u64>) {
        self.shared.state.lock().unwrap().script.push_back((status, retry_after));
    }

    /// Workspaces that exist.
    pub(crate) fn workspaces(&self) -> Vec<String> {
        self.shared.state.lock().unwrap().workspaces.iter().cloned().collect()
    }

    /// Workspaces that were ever made.
    pub(crate) fn made(&self) -> usize {
        self.shared.state.lock().unwrap().made
    }

    /// Updates that arrived.
    pub(crate) fn traffic(&self) -> usize {
        self.shared.state.lock().unwrap().traffic
    }

    /// Connections that were accepted.
    pub(crate) fn connections(&self) -> usize {
        self.shared.state.lock().unwrap().connections
    }

    pub(crate) fn strangers(&self) -> BTreeSet<String> {
        self.shared.state.lock().unwrap().strangers.clone()
    }
}

/// The text of a kubeconfig without credentials.
pub(crate) fn kubeconfig(server: &str) -> String {
    format!(
        "clusters:\n- {{name: c, cluster: {{server: '{server}'}}}}\nusers:\n- {{name: u, user: {{}}}}\n\
         contexts:\n- {{name: x, context: {{cluster: c, user: u}}}}\ncurrent-context: x\n"
    )
}

impl Shared {
    async fn serve(self: Arc<Self>, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
        let (head, body) = request.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        self.frozen.subscribe().wait_for(|frozen| !frozen).await.unwrap();
        let mut state = self.state.lock().unwrap();
        let mut answer = Response::builder();
        let path = head.uri.path();
        let (status, text) = match path.strip_prefix("/clusters/root/apis/tenancy.kcp.io/v1alpha1/workspaces") {
            Some(name) => state.workspace(&head.method, name.trim_start_matches('/'), &body),
            None => {
                let user = head.headers.get("impersonate-user").map(|user| user.to_str().unwrap()).unwrap_or("admin");
                if !path.starts_with(&format!("/clusters/root:{user}/")) {
                    state.strangers.insert(user.to_owned());
                }
                state.traffic += usize::from(head.method == Method::PUT);
                let (status, retry_after) = state.script.pop_front().unwrap_or((200, None));
                if let Some(seconds) = retry_after {
                    answer = answer.header("retry-after", seconds);
                }
                (status, "{}".to_owned())
            }
        };
        Ok(answer.status(status).body(Full::from(text)).unwrap())
    }
}

impl State {
    fn workspace(&mut self, method: &Method, name: &str, body: &[u8]) -> (u16, String) {
        if *method == Method::POST {
            let body: serde_json::Value = serde_json::from_slice(body).unwrap();
            self.made += 1;
            self.workspaces.insert(body["metadata"]["name"].as_str().unwrap().to_owned());
            return (201, body.to_string());
        }
        if !self.workspaces.contains(name) {
            return (404, r#"{"message":"not found"}"#.to_owned());
        }
        if *method == Method::DELETE {
            self.workspaces.remove(name);
        }
        (200, r#"{"status":{"phase":"Ready"}}"#.to_owned())
    }
}
