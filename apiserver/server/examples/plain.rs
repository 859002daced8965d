//! The API server on a loopback port, without TLS and without a gateway in front of it: for trying it out with
//! kubectl. Everybody who reaches the port is `system:masters` unless he says otherwise.
//!
//! `cargo run -p apiserver-server --example plain -- 8080`, then
//! `kubectl --server http://127.0.0.1:8080/clusters/root get namespaces`.

use std::{convert::Infallible, net::Ipv4Addr, sync::Arc};

use apiserver_server::{ApiServer, Options, Trust};
use apiserver_storage::Embedded;
use http::{HeaderValue, Request};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto::Builder,
};
use tokio::net::TcpListener;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let port: u16 = std::env::args().nth(1).map_or(Ok(0), |text| text.parse())?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await?;
    let address = listener.local_addr()?;
    let options = Options { external_url: format!("http://{address}"), ..Options::default() };
    let server = ApiServer::new(Arc::new(Embedded::in_memory()), options);
    server.bootstrap().await?;
    println!("http://{address}/clusters/root");
    loop {
        let (stream, _) = listener.accept().await?;
        let server = server.clone();
        tokio::spawn(async move {
            let service = service_fn(move |request| {
                let server = server.clone();
                async move { Ok::<_, Infallible>(server.handle(with_identity(request), Trust::Gateway).await) }
            });
            if let Err(error) = Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), service).await
            {
                eprintln!("connection: {error}");
            }
        });
    }
}

fn with_identity(mut request: Request<Incoming>) -> Request<Incoming> {
    let headers = request.headers_mut();
    if !headers.contains_key("x-remote-user") {
        headers.insert("x-remote-user", HeaderValue::from_static("admin"));
        headers.insert("x-remote-group", HeaderValue::from_static("system:masters"));
    }
    request
}
