//! The requests of one tenant, prepared so that sending one costs next to nothing.

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Request, Uri, header};
use http_body_util::Full;

use crate::{cli::RequestKind, client::Endpoint};

/// The namespace in which the tenants' objects are.
pub(crate) const NAMESPACE: &str = "load";
/// Text in each object, so that it has the size of a small configmap.
const PAYLOAD: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef\
                       0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

/// The levels that a tenant's users are put into by Kubernetes' own FlowSchemas, by number of the user.
pub(crate) const LEVELS: [&str; 3] = ["default", "low", "high"];

/// A tenant's requests of one kind.
pub(crate) struct Traffic {
    kind: RequestKind,
    /// One for each user.
    headers: Vec<HeaderMap>,
    collection: Uri,
    /// One per object.
    items: Vec<Uri>,
}

impl Traffic {
    /// `workspace` is the workspace's name under root; it is also the tenant's user name. With several `levels` it has as
    /// many users.
    pub(crate) fn new(
        endpoint: &Endpoint,
        workspace: &str,
        kind: RequestKind,
        objects: u32,
        levels: u32,
    ) -> anyhow::Result<Self> {
        let collection = configmaps(workspace);
        let selector = if kind == RequestKind::Select { "?labelSelector=load%3Dnone" } else { "" };
        let items = (0..objects.max(1)).map(|i| format!("{collection}/{}", object(u64::from(i))).parse());
        Ok(Self {
            kind,
            headers: users(endpoint, workspace)?.into_iter().take(levels.max(1) as usize).collect(),
            collection: format!("{collection}{selector}").parse()?,
            items: items.collect::<Result<_, _>>()?,
        })
    }

    /// How many levels are kept busy.
    pub(crate) fn levels(&self) -> usize {
        self.headers.len()
    }

    /// The level of a client's requests: its place in [`LEVELS`].
    pub(crate) fn level(&self, client: u64) -> usize {
        (client % self.headers.len() as u64) as usize
    }

    /// The `sequence`-th request of the client with this number; no two need be alike.
    pub(crate) fn request(&self, client: u64, sequence: u64) -> Request<Full<Bytes>> {
        let index = (client + sequence) % self.items.len() as u64;
        let item = self.items.get(index as usize).unwrap_or(&self.collection).clone();
        let (method, uri, body) = match self.kind {
            RequestKind::Get => (Method::GET, item, Bytes::new()),
            RequestKind::List | RequestKind::Select => (Method::GET, self.collection.clone(), Bytes::new()),
            RequestKind::Create => {
                (Method::POST, self.collection.clone(), configmap(&format!("new-{client}-{sequence}"), sequence))
            }
            // A client keeps to its own object: writers of one object would wait for each other.
            RequestKind::Update => {
                let own = client % self.items.len() as u64;
                let uri = self.items.get(own as usize).unwrap_or(&self.collection).clone();
                (Method::PUT, uri, configmap(&object(own), sequence))
            }
        };
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = method;
        *request.uri_mut() = uri;
        *request.headers_mut() = self.headers.get(self.level(client)).cloned().unwrap_or_default();
        request
    }
}

/// Headers of all requests; with `user` they are sent as that tenant, who is an administrator of workspaces and so
/// allowed to do all this, but not exempt from fairness as the certificate's owner is.
pub(crate) fn headers(endpoint: &Endpoint, user: Option<&str>) -> anyhow::Result<HeaderMap> {
    let mut headers = HeaderMap::new();
    headers.insert(header::HOST, endpoint.authority.parse()?);
    headers.insert(header::ACCEPT, HeaderValue::from_static("application/json"));
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers
        .insert(header::USER_AGENT, HeaderValue::from_static(concat!("fairgate-loadtest/", env!("CARGO_PKG_VERSION"))));
    if let Some(token) = &endpoint.authorization {
        headers.insert(header::AUTHORIZATION, token.clone());
    }
    if let Some(user) = user {
        headers.insert("impersonate-user", user.parse()?);
        headers.insert("impersonate-group", HeaderValue::from_static("system:kcp:admin"));
    }
    Ok(headers)
}

/// A tenant's users in the order of [`LEVELS`].
fn users(endpoint: &Endpoint, workspace: &str) -> anyhow::Result<[HeaderMap; 3]> {
    let plain = headers(endpoint, Some(workspace))?;
    let mut batch = headers(endpoint, Some(&format!("{workspace}-batch")))?;
    batch.append("impersonate-group", HeaderValue::from_static("system:serviceaccounts"));
    let controller = headers(endpoint, Some("system:kube-controller-manager"))?;
    Ok([plain, batch, controller])
}

/// Path of the tenant's configmaps.
pub(crate) fn configmaps(workspace: &str) -> String {
    format!("/clusters/root:{workspace}/api/v1/namespaces/{NAMESPACE}/configmaps")
}

/// Name of the tenant's object with this number.
pub(crate) fn object(number: u64) -> String {
    format!("object-{number}")
}

/// A configmap. The sequence number makes each one differ: a write that changes nothing is not a write.
pub(crate) fn configmap(name: &str, sequence: u64) -> Bytes {
    format!(
        r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"name":"{name}"}},"data":{{"sequence":"{sequence}","payload":"{PAYLOAD}"}}}}"#
    )
    .into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn traffic(kind: RequestKind) -> Traffic {
        let endpoint = Endpoint {
            address: ([127, 0, 0, 1], 1).into(),
            authority: "127.0.0.1:1".into(),
            tls: None,
            authorization: None,
        };
        Traffic::new(&endpoint, "a", kind, 10, 3).unwrap()
    }

    #[test]
    fn requests_are_as_the_kind_says() {
        let path = "/clusters/root:a/api/v1/namespaces/load/configmaps";
        for (kind, method, uri) in [
            (RequestKind::Get, Method::GET, format!("{path}/object-5")),
            (RequestKind::List, Method::GET, path.to_owned()),
            (RequestKind::Select, Method::GET, format!("{path}?labelSelector=load%3Dnone")),
            (RequestKind::Create, Method::POST, path.to_owned()),
            (RequestKind::Update, Method::PUT, format!("{path}/object-3")),
        ] {
            let request = traffic(kind).request(13, 2);
            assert_eq!((request.method(), request.uri().to_string()), (&method, uri));
            assert_eq!(request.headers()["impersonate-user"], "a-batch");
        }
        let users = [0, 1, 2, 3].map(|client| traffic(RequestKind::Get).request(client, 9).headers().clone());
        assert_eq!(users[2]["impersonate-user"], "system:kube-controller-manager");
        assert!(users[1].get_all("impersonate-group").iter().any(|group| group == "system:serviceaccounts"));
        assert_eq!((&users[0]["impersonate-user"], &users[3]), (&HeaderValue::from_static("a"), &users[0]));
    }

    #[test]
    fn bodies_are_objects_and_differ() {
        let body: serde_json::Value = serde_json::from_slice(&configmap("x", 7)).unwrap();
        assert_eq!((&body["metadata"]["name"], &body["data"]["sequence"]), (&"x".into(), &"7".into()));
        assert_ne!(configmap("x", 7), configmap("x", 8));
    }
}
