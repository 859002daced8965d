//! One client connection: TLS, the choice of protocol, and its life until it ends or is ended.

use std::{
    io,
    net::SocketAddr,
    pin::{Pin, pin},
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{
            AtomicBool, AtomicU32,
            Ordering::{Relaxed, Release},
        },
    },
    task::{Context, Poll},
};

use bytes::{Buf, Bytes, BytesMut};
use http::HeaderValue;
use hyper::{
    server::conn::{http1, http2},
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf},
    net::TcpStream,
};
use tokio_rustls::TlsAcceptor;

use crate::{
    ahead::Reader,
    frames::{Excess, Frames},
    framing::Framing,
    h2::{Deferred, Streams},
    identity::Certificate,
    io::{Gone, Probes, Socket, tune, write_flat},
    refusal,
    refused::Why,
    reply::Flight,
    serve::serve,
    tunnel::{self, Tunnel},
    worker::{Link, Worker},
};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// hyper's own bound, above ours: so that a head over our limit is answered with a Status.
const HEAD_MAX: usize = 256 << 10;
const STREAM_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = 4 << 20;
const FRAME_MAX: u32 = 16 << 10;
/// Up to this many header fields hyper reads without an allocation.
const HEADERS_ON_STACK: usize = 100;

/// The client's end of a connection.
pub(crate) struct Peer {
    pub(crate) certificate: Option<Certificate>,
    /// For `X-Forwarded-For`.
    pub(crate) address: HeaderValue,
    /// For `X-Forwarded-Proto`.
    pub(crate) proto: HeaderValue,
    pub(crate) link: Arc<Link>,
    pub(crate) is_h2: bool,
    /// The answer that is read ahead of the client, on HTTP/1.1; and whether there may be one.
    reader: Mutex<Reader>,
    reads_ahead: AtomicBool,
    /// A request with two framings was read: nothing on this connection is served any more.
    pub(crate) ambiguous: AtomicBool,
    /// Requests that hyper has handed on.
    pub(crate) served: AtomicU32,
    /// What a client that exceeds a limit of HTTP/2 is told at last.
    goodbye: OnceLock<[u8; 17]>,
    tunnel: Mutex<Option<Tunnel>>,
    /// The request that the tunnel is. It knows its peer in turn: [`Abandoned`] sees to it that it is taken.
    flight: Mutex<Option<Flight>>,
}

impl Peer {
    /// Leaves an answer to the connection's task, to be read ahead.
    pub(crate) fn read_ahead(&self, reader: Reader) {
        *self.reader.lock().unwrap_or_else(PoisonError::into_inner) = reader;
        self.reads_ahead.store(true, Relaxed);
    }

    /// Reads ahead what there is.
    fn fill(&self, cx: &mut Context<'_>) {
        if self.reads_ahead.load(Relaxed) {
            let more = self.reader.lock().unwrap_or_else(PoisonError::into_inner).fill(cx);
            self.reads_ahead.store(more, Relaxed);
        }
    }

    /// Leaves a tunnel to the connection's task.
    pub(crate) fn open_tunnel(&self, tunnel: Tunnel) {
        *self.tunnel.lock().unwrap_or_else(PoisonError::into_inner) = Some(tunnel);
    }

    /// Leaves the request that opened the tunnel to it.
    pub(crate) fn go_on(&self, flight: Flight) {
        *self.flight.lock().unwrap_or_else(PoisonError::into_inner) = Some(flight);
    }

    fn take_flight(&self) -> Option<Flight> {
        self.flight.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// Ends the request of a tunnel that was never run.
struct Abandoned(Arc<Peer>);

impl Drop for Abandoned {
    fn drop(&mut self) {
        drop(self.0.take_flight());
    }
}

/// A connection known to the sweep.
struct Registered<'a> {
    worker: &'a Worker,
    key: usize,
}

impl Drop for Registered<'_> {
    fn drop(&mut self) {
        self.worker.forget(self.key);
    }
}

/// Serves one connection until it ends, fails, or is ended by the sweep or a shutdown.
pub(crate) async fn run(worker: Arc<Worker>, tcp: TcpStream, address: SocketAddr) {
    let link = Arc::new(Link::new(address));
    let _registered = Registered { worker: &worker, key: worker.register(link.clone()) };
    // Only now: when whom clients show their certificates changes, those who are registered are asked to leave, and all
    // others must find the new one.
    let tls = worker.core.tls.load_full().map(TlsAcceptor::from);
    let mut life = pin!(live(&worker, tls, tcp, address, &link));
    let ended = std::future::poll_fn(|cx| {
        link.register(cx.waker());
        if link.is_killed() { Poll::Ready(Ok(())) } else { life.as_mut().poll(cx) }
    });
    if let Err(error) = ended.await {
        tracing::debug!(%address, %error, "client connection ended");
    }
}

async fn live(
    worker: &Arc<Worker>,
    tls: Option<TlsAcceptor>,
    tcp: TcpStream,
    address: SocketAddr,
    link: &Arc<Link>,
) -> Result<(), crate::BoxError> {
    tune(&tcp, &Probes::CLIENTS)?;
    let ip = HeaderValue::try_from(address.ip().to_canonical().to_string())?;
    let mut peer = Peer {
        certificate: None,
        address: ip,
        proto: HeaderValue::from_static("http"),
        link: link.clone(),
        is_h2: false,
        reader: Mutex::default(),
        reads_ahead: AtomicBool::new(false),
        ambiguous: AtomicBool::new(false),
        served: AtomicU32::new(0),
        goodbye: OnceLock::new(),
        tunnel: Mutex::default(),
        flight: Mutex::default(),
    };
    let (socket, gone) = Socket::new(tcp);
    let Some(acceptor) = tls else {
        let (is_h2, stream, read) = sniff(socket).await?;
        worker.establish(link);
        peer.is_h2 = is_h2;
        return speak(worker, Arc::new(peer), stream, &gone, read).await;
    };
    let stream = acceptor.accept(socket).await?;
    let (_, session) = stream.get_ref();
    if let Some(certificate) = session.peer_certificates().and_then(|chain| chain.first()) {
        // As upstream, a certificate that names no user is no credential.
        peer.certificate = Certificate::read(certificate, worker.core.access.load_full());
    }
    peer.proto = HeaderValue::from_static("https");
    peer.is_h2 = session.alpn_protocol() == Some(b"h2");
    speak(worker, Arc::new(peer), stream, &gone, Bytes::new()).await
}

/// Reads just enough to tell HTTP/2 with prior knowledge from HTTP/1.1.
async fn sniff(mut tcp: Socket) -> io::Result<(bool, Socket, Bytes)> {
    let mut read = BytesMut::with_capacity(8 << 10);
    while read.len() < PREFACE.len() && PREFACE.starts_with(&read) {
        if tcp.read_buf(&mut read).await? == 0 {
            break;
        }
    }
    Ok((read.starts_with(PREFACE), tcp, read.freeze()))
}

async fn speak<S>(
    worker: &Arc<Worker>,
    peer: Arc<Peer>,
    stream: S,
    gone: &Gone,
    read: Bytes,
) -> Result<(), crate::BoxError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let is_h2 = peer.is_h2;
    let eye = if is_h2 { Eye::H2(Frames::new()) } else { Eye::H1(Framing::new()) };
    let io = ClientIo { stream, read, eye, answer: None, peer: peer.clone(), worker: worker.clone() };
    if is_h2 { speak_h2(worker, peer, io).await } else { speak_h1(worker, peer, io, gone).await }
}

async fn speak_h1<S>(worker: &Arc<Worker>, peer: Arc<Peer>, io: ClientIo<S>, gone: &Gone) -> Result<(), crate::BoxError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let link = peer.link.clone();
    let _abandoned = Abandoned(peer.clone());
    let service = service_fn(|request| serve(worker.clone(), peer.clone(), request));
    let mut builder = http1::Builder::new();
    // No `half_close`: hyper then notices a client that leaves while its request waits in a queue. No header timer:
    // the sweep does that for all connections at once.
    builder.half_close(false).auto_date_header(false).max_header_size(HEAD_MAX).max_buf_size(HEAD_MAX + (64 << 10));
    let heads = worker.core.limits.header_count;
    if heads > HEADERS_ON_STACK {
        builder.max_headers(heads);
    }
    let mut connection = pin!(builder.serve_connection(TokioIo::new(io), service).with_upgrades());
    let mut gone = pin!(gone.wait());
    let mut told = false;
    std::future::poll_fn(|cx| {
        if !told && link.is_draining() {
            told = true;
            connection.as_mut().graceful_shutdown();
        }
        let done = connection.as_mut().poll(cx).map_err(crate::BoxError::from);
        if done.is_pending() {
            peer.fill(cx);
            // hyper sees the client leave only while it reads: not behind a body or a request that is not taken yet.
            let is_unseen = !link.watched.load(Relaxed) && link.requests.load(Relaxed) > 0;
            if is_unseen && gone.as_mut().poll(cx).is_ready() {
                return Poll::Ready(Err("the client has left its requests behind".into()));
            }
        }
        done
    })
    .await?;
    let tunnel = peer.tunnel.lock().unwrap_or_else(PoisonError::into_inner).take();
    match (tunnel, peer.take_flight()) {
        (Some(tunnel), Some(flight)) => tunnel::run(&link, tunnel, flight, gone).await,
        _ => Ok(()),
    }
}

async fn speak_h2<S>(worker: &Arc<Worker>, peer: Arc<Peer>, io: ClientIo<S>) -> Result<(), crate::BoxError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let link = peer.link.clone();
    let service = {
        let (worker, peer) = (worker.clone(), peer.clone());
        service_fn(move |request| serve(worker.clone(), peer.clone(), request))
    };
    let out = Deferred::new(io);
    let mut streams = Streams::new();
    let mut builder = http2::Builder::new(streams.executor());
    builder
        .auto_date_header(false)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_frame_size(FRAME_MAX)
        .max_concurrent_streams(worker.core.limits.streams)
        .max_header_list_size(u32::try_from(HEAD_MAX).unwrap_or(u32::MAX));
    let mut connection = pin!(builder.serve_connection(TokioIo::new(out.clone()), service));
    // Not before its first request: a client that has just come would hear it before it has sent anything, and not all
    // of them send again on another connection what they have never sent on this one.
    let is_to_leave = || link.is_draining() || (link.is_aged() && peer.served.load(Relaxed) > 0);
    let is_told = || link.told.load(Relaxed) > 0;
    let ended = std::future::poll_fn(|cx| {
        if !is_told() && is_to_leave() {
            link.told.store(worker.tick(), Relaxed);
            connection.as_mut().graceful_shutdown();
        }
        streams.turn(cx);
        let mut done = connection.as_mut().poll(cx);
        if streams.take_up() {
            streams.turn(cx);
            if done.is_pending() {
                done = connection.as_mut().poll(cx);
            }
        }
        if !is_told() && done.is_pending() && is_to_leave() {
            // That request has come in this turn, and nothing else may wake the connection.
            cx.waker().wake_by_ref();
        }
        if let Some(goodbye) = peer.goodbye.get().filter(|_| done.is_ready()) {
            // Its last words; who does not read loses them.
            let _ = Pin::new(&mut out.clone()).poll_write(cx, goodbye);
        }
        // One record, one send, for all streams of this turn.
        match out.push(cx) {
            Poll::Ready(Err(error)) if done.is_pending() => Poll::Ready(Err(error.into())),
            _ => done.map_err(crate::BoxError::from),
        }
    })
    .await;
    if let Some(error) = ended.as_ref().err().filter(|error| is_protocol_error(&***error)) {
        worker.core.refused(Why::Protocol, &link.address, error);
    }
    ended
}

/// Whether HTTP/2 was ended by us, because of what the client sent.
fn is_protocol_error(error: &(dyn std::error::Error + 'static)) -> bool {
    let cause = error.source().and_then(|cause| cause.downcast_ref::<::h2::Error>());
    cause.is_some_and(|cause| cause.is_library() && !cause.is_io())
}

/// What is watched in the bytes of a client, beside what hyper makes of them.
enum Eye {
    H1(Framing),
    H2(Frames),
}

/// The client's stream: what has been read ahead comes first, signs of life are noted, HTTP/1.1 framing and the heads
/// of HTTP/2 frames are watched.
struct ClientIo<S> {
    stream: S,
    read: Bytes,
    eye: Eye,
    /// What is written in the place of hyper's own answer, and how much of it has been.
    answer: Option<(Vec<u8>, usize)>,
    peer: Arc<Peer>,
    worker: Arc<Worker>,
}

impl<S> ClientIo<S> {
    fn note(&mut self, bytes: &[u8]) -> io::Result<()> {
        let (link, tick) = (&self.peer.link, self.worker.tick());
        // Pings and empty lines are no use of a connection.
        if link.is_used() {
            link.seen.store(tick, Relaxed);
        }
        self.worker.establish(link);
        let framing = match &mut self.eye {
            Eye::H1(framing) => framing,
            Eye::H2(frames) => {
                return frames.scan(bytes, tick, &self.worker.core.limits).map_err(|excess| {
                    let _ = self.peer.goodbye.set(frames.goodbye());
                    let (why, what) = match excess {
                        Excess::Resets => (Why::Resets, "too many streams reset"),
                        Excess::Control => (Why::Frames, "too many frames that carry nothing"),
                    };
                    self.worker.core.refused(why, &link.address, &what);
                    io::Error::other(what)
                });
            }
        };
        framing.scan(bytes);
        if framing.is_ambiguous() {
            self.peer.ambiguous.store(true, Release);
        }
        let since = link.head_since.load(Relaxed);
        match framing.is_in_head() {
            true if since == 0 => link.head_since.store(tick, Relaxed),
            false if since != 0 => link.head_since.store(0, Relaxed),
            _ => {}
        }
        Ok(())
    }

    /// The answer to a head that hyper could not read, in the place of `bytes`, if these are what hyper answers itself:
    /// an empty one, without a word why. It knows of no request then.
    fn replace(&mut self, bytes: &[u8]) {
        let Eye::H1(framing) = &self.eye else { return };
        // What passes through a tunnel is no answer of hyper's, whatever it looks like.
        if framing.heads() == self.peer.served.load(Relaxed) || self.peer.link.is_tunnel.load(Relaxed) {
            return;
        }
        if let Some(status) = refusal::of_hyper(bytes, &self.worker.core.limits) {
            let why = if status.code == 400 { Why::Framing } else { Why::Head };
            self.worker.core.refused(why, &self.peer.link.address, &status.message);
            self.answer = Some((refusal::last_words(&status), 0));
        }
    }
}

impl<S: AsyncWrite + Unpin> ClientIo<S> {
    /// Writes the rest of the answer that stands for `len` bytes of hyper's.
    fn poll_answer(&mut self, cx: &mut Context<'_>, len: usize) -> Poll<io::Result<usize>> {
        while let Some((answer, sent)) = &mut self.answer {
            let rest = answer.get(*sent..).unwrap_or_default();
            if rest.is_empty() {
                self.answer = None;
                break;
            }
            match std::task::ready!(Pin::new(&mut self.stream).poll_write(cx, rest))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                n => *sent += n,
            }
        }
        Poll::Ready(Ok(len))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for ClientIo<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let before = buf.filled().len();
        if this.read.is_empty() {
            let polled = Pin::new(&mut this.stream).poll_read(cx, buf);
            this.peer.link.watched.store(polled.is_pending(), Relaxed);
            std::task::ready!(polled)?;
        } else {
            let here = this.read.len().min(buf.remaining());
            buf.put_slice(this.read.get(..here).unwrap_or_default());
            this.read.advance(here);
        }
        match buf.filled().get(before..) {
            Some(bytes) if !bytes.is_empty() => this.note(bytes)?,
            _ => this.peer.link.is_read.store(true, Relaxed),
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for ClientIo<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        if self.answer.is_none() {
            self.replace(buf);
        }
        if self.answer.is_some() {
            return self.poll_answer(cx, buf.len());
        }
        let link = &self.peer.link;
        if link.is_tunnel.load(Relaxed) {
            link.seen.store(self.worker.tick(), Relaxed);
        }
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if let [one] = bufs {
            return self.poll_write(cx, one);
        }
        write_flat(Pin::new(&mut self.stream), cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "this is a test")]

    use rustls::{ClientConfig, RootCertStore, ServerConfig, pki_types::PrivateKeyDer};
    use tokio_rustls::TlsConnector;

    use super::*;
    use crate::worker::tests::core;

    fn door() -> (Arc<ServerConfig>, TlsConnector) {
        let made = rcgen::generate_simple_self_signed(["door".to_owned()]).unwrap();
        let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
        let server = ServerConfig::builder().with_no_client_auth();
        let server = server.with_single_cert(vec![made.cert.der().clone()], key).unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(made.cert.der().clone()).unwrap();
        let client = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
        (Arc::new(server), TlsConnector::from(Arc::new(client)))
    }

    /// A connection whose life begins after a change of TLS is made under the new one; one that begins before is known
    /// to those who ask all connections to leave.
    #[tokio::test]
    async fn a_connection_is_registered_before_it_takes_the_tls_in_force() {
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let (worker, (old, _), (new, client)) = (Arc::new(Worker::new(0, core())), door(), door());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let connecting = TcpStream::connect(listener.local_addr().unwrap());
        let (socket, accepted) = tokio::join!(connecting, listener.accept());
        let (tcp, address) = accepted.unwrap();
        worker.core.tls.store(Some(old));
        // Accepted, and not begun with.
        let life = run(worker.clone(), tcp, address);
        worker.core.tls.store(Some(new));
        worker.leave();
        let life = tokio::spawn(life);
        client.connect("door".try_into().unwrap(), socket.unwrap()).await.expect("the new certificate");
        life.abort();
    }
}
