//! Shards that speak HTTP/2 and go wrong, byte by byte.

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use super::{
    Row, Sees,
    Sees::{Answer, Broken, Status},
    Then::{self, Close, Hang, Ping, Reset, Stall, StallAtOnce},
};
use crate::support::frames::*;

/// A field that is in no table.
fn field(name: &str, value: &str) -> Vec<u8> {
    [vec![0], text(name), text(value)].concat()
}

/// A text behind its length, which RFC 7541 section 5.1 writes in seven bits at a time from 127 on.
fn text(text: &str) -> Vec<u8> {
    let length = match text.len().checked_sub(127) {
        None => vec![u8::try_from(text.len()).unwrap()],
        Some(more) => vec![127, u8::try_from(more % 128 + 128).unwrap(), u8::try_from(more / 128).unwrap()],
    };
    [&length, text.as_bytes()].concat()
}

fn block(fields: &[(&str, &str)]) -> Vec<u8> {
    let block: Vec<u8> = fields.iter().flat_map(|(name, value)| field(name, value)).collect();
    frame(HEADERS, END_HEADERS, 1, &block)
}

/// A head that is the end as well.
fn ended(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut head = block(fields);
    head[4] |= END_STREAM;
    head
}

/// The head of a 200 with about so many bytes of fields, in as many frames as it takes.
fn long_head(bytes: usize) -> Vec<u8> {
    let fields = field("a", &"b".repeat(1000)).repeat(bytes / 1000);
    let parts: Vec<_> = fields.chunks(16_000).collect();
    let (last, others) = parts.split_last().unwrap();
    let others: Vec<u8> = others.iter().flat_map(|part| frame(CONTINUATION, 0, 1, part)).collect();
    [frame(HEADERS, 0, 1, &[0x88]), others, frame(CONTINUATION, END_HEADERS, 1, last)].concat()
}

/// What a window cannot grow by.
const WIDE: &[u8] = &[0x7f, 0xff, 0xff, 0xff];
const PADDED: u8 = 8;

fn data(text: &str, flags: u8) -> Vec<u8> {
    frame(DATA, flags, 1, text.as_bytes())
}

fn reset(reason: u8) -> Vec<u8> {
    frame(RST_STREAM, 0, 1, &[0, 0, 0, reason])
}

fn goaway(last: u8, reason: u8) -> Vec<u8> {
    frame(GOAWAY, 0, 0, &[0, 0, 0, last, 0, 0, 0, reason])
}

/// What the shard sends before the request, and after it.
#[derive(Clone)]
pub(crate) struct Script {
    greeting: Vec<u8>,
    /// `None` if the greeting is all.
    bytes: Option<Vec<u8>>,
}

pub(crate) fn table() -> Vec<Row<Script>> {
    let ok = || block(&[(":status", "200")]);
    let sized = || block(&[(":status", "200"), ("content-length", "4")]);
    let settings = || frame(SETTINGS, 0, 0, &[]);
    let early = |name, greeting: &[u8], then, sees| Row {
        name,
        script: Script { greeting: greeting.to_vec(), bytes: None },
        then,
        sees,
    };
    let late = |name, parts: &[Vec<u8>], then: Then, sees: Sees| Row {
        name,
        script: Script { greeting: settings(), bytes: Some(parts.concat()) },
        then,
        sees,
    };
    let served = Answer(200, "fine");
    vec![
        early("closes instead of a greeting", b"", Close, Status(503)),
        early("resets instead of a greeting", b"", Reset, Status(503)),
        early("does not greet", b"", StallAtOnce, Status(503)),
        early("greets in HTTP/1.1", b"HTTP/1.1 400 Bad Request\r\n\r\n", Hang, Status(503)),
        early("greets with garbage", &[0x17; 64], Hang, Status(503)),
        early("greets with another frame than its settings", &data("x", 0), Hang, Status(503)),
        late("closes at once", &[], Close, Status(502)),
        late("resets the connection at once", &[], Reset, Status(502)),
        late("says nothing", &[], Stall, Status(504)),
        late("says nothing and does not answer pings", &[], Ping, Status(502)),
        late("refuses the stream", &[reset(7)], Hang, served),
        late("resets the stream", &[reset(2)], Hang, Status(502)),
        late("cancels the stream", &[reset(8)], Hang, Status(502)),
        late("goes away before the request", &[goaway(0, 0)], Hang, served),
        late("goes away before the request and closes", &[goaway(0, 0)], Close, served),
        late("goes away before the request, with an error", &[goaway(0, 11)], Hang, served),
        late(
            "goes away behind the request",
            &[goaway(1, 0), ok(), data("abcd", END_STREAM)],
            Hang,
            Answer(200, "abcd"),
        ),
        late("goes away behind the request and closes", &[goaway(1, 0)], Close, Status(502)),
        late("half a frame", &[ok()[..7].to_vec()], Close, Status(502)),
        late("half a frame, then nothing", &[ok()[..7].to_vec()], Ping, Status(502)),
        late("garbage", &[vec![0x17; 64]], Hang, Status(502)),
        late("a frame that nobody knows", &[frame(0xee, 0, 1, b"?"), ok(), data("abcd", 1)], Hang, Answer(200, "abcd")),
        late("a frame longer than allowed", &[frame(DATA, 0, 1, &[0; 20_000])], Hang, Status(502)),
        late("a head on stream 0", &[frame(HEADERS, END_HEADERS, 0, &[0x88])], Hang, Status(502)),
        late("a body before the head", &[data("abcd", END_STREAM)], Hang, Status(502)),
        late("a head that cannot be unpacked", &[frame(HEADERS, END_HEADERS, 1, &[0xff; 9])], Hang, Status(502)),
        late("a head without a status", &[block(&[("a", "b")])], Hang, Status(502)),
        late("a field name in capitals", &[block(&[(":status", "200"), ("Aa", "b")])], Hang, Status(502)),
        late("a field of HTTP/1.1", &[block(&[(":status", "200"), ("connection", "close")])], Hang, Status(502)),
        late(
            "a promise nobody asked for",
            &[frame(PUSH_PROMISE, END_HEADERS, 1, &[0, 0, 0, 2, 0x82])],
            Hang,
            Status(502),
        ),
        late("an endless head", &[frame(HEADERS, 0, 1, &[0x88]), endless()], Hang, Status(502)),
        late("endless interim answers", &[block(&[(":status", "103")]).repeat(1000)], Hang, Status(502)),
        late(
            "interim answers, then a real one",
            &[block(&[(":status", "100")]), block(&[(":status", "103")]), ok(), data("abcd", END_STREAM)],
            Hang,
            Answer(200, "abcd"),
        ),
        late(
            "a window beyond all bounds, of a request that is whole",
            &[frame(WINDOW_UPDATE, 0, 1, WIDE), ok(), data("abcd", END_STREAM)],
            Hang,
            Answer(200, "abcd"),
        ),
        late("a window of the connection beyond all bounds", &[frame(WINDOW_UPDATE, 0, 0, WIDE)], Hang, Status(502)),
        late("a window that grows by nothing", &[frame(WINDOW_UPDATE, 0, 1, &[0; 4])], Hang, Status(502)),
        late("a setting beyond its bounds", &[frame(SETTINGS, 0, 0, &[0, 4, 0xff, 0, 0, 0])], Hang, Status(502)),
        late("a ping of the wrong length", &[frame(PING, 0, 0, b"?")], Hang, Status(502)),
        late("a reset of a stream that there is not", &[frame(RST_STREAM, 0, 9, &[0; 4])], Hang, Status(502)),
        late("more padding than frame", &[ok(), frame(DATA, PADDED, 1, &[9, 0])], Hang, Broken),
        late("a head of 80 KB", &[long_head(80_000)], Hang, Status(502)),
        late("a head of 12 KB", &[long_head(12_000), data("abcd", END_STREAM)], Hang, Answer(200, "abcd")),
        late("nothing but a head", &[ended(&[(":status", "200"), ("a", "b")])], Hang, Answer(200, "")),
        late("trailers", &[ok(), data("abcd", 0), ended(&[("a", "b")])], Hang, Answer(200, "abcd")),
        late("trailers that are not the end", &[ok(), data("ab", 0), block(&[("a", "b")])], Hang, Broken),
        late("trailers with a status", &[ok(), data("ab", 0), ended(&[(":status", "200")])], Hang, Answer(200, "ab")),
        late("a body behind its end", &[ok(), data("abcd", END_STREAM), data("ef", 0)], Hang, Answer(200, "abcd")),
        late("an answer twice", &[ok(), data("abcd", END_STREAM), ok()], Hang, Answer(200, "abcd")),
        late("a length of no number", &[block(&[(":status", "200"), ("content-length", "x")])], Hang, Status(502)),
        late("switches protocols", &[block(&[(":status", "101")])], Hang, Status(502)),
        late("no length", &[ok(), data("ab", 0), data("cd", END_STREAM)], Hang, Answer(200, "abcd")),
        late("half a body", &[sized(), data("ab", 0)], Close, Broken),
        late("half a body, connection reset", &[sized(), data("ab", 0)], Reset, Broken),
        late("half a body, stream reset", &[sized(), data("ab", 0), reset(2)], Hang, Broken),
        late("half a body, then nothing", &[sized(), data("ab", 0)], Stall, Broken),
        late("half a body, then not even pongs", &[ok(), data("ab", 0)], Ping, Broken),
        late("half a body, then it goes away", &[sized(), data("ab", 0), goaway(1, 0)], Close, Broken),
        late("a body shorter than it says", &[sized(), data("ab", END_STREAM)], Hang, Broken),
        late("a body longer than it says", &[sized(), data("abcde", END_STREAM)], Hang, Broken),
        late("nothing of a body", &[sized()], Close, Broken),
        late("an error of its own", &[block(&[(":status", "500")]), data("no", END_STREAM)], Close, Answer(500, "no")),
    ]
}

/// Continuations of a head that has no end.
fn endless() -> Vec<u8> {
    frame(CONTINUATION, 0, 1, &field("a", "b").repeat(2000)).repeat(100)
}

/// A connection that goes wrong.
pub(crate) async fn fail(mut socket: TcpStream, script: Script, then: Then) {
    // The gateway may have heard enough before the end.
    let _ = socket.write_all(&script.greeting).await;
    let Some(bytes) = script.bytes else { return then.end(socket).await };
    let mut reader = Reader::new(socket);
    reader.request(false).await;
    let _ = reader.socket.write_all(&bytes).await;
    match then {
        // Alive, but for the one request.
        Hang | Stall => reader.serve().await,
        then => then.end(reader.socket).await,
    }
}

/// A connection that serves.
pub(crate) async fn serve(mut socket: TcpStream) {
    socket.write_all(&frame(SETTINGS, 0, 0, &[])).await.unwrap();
    Reader::new(socket).serve().await;
}

/// Reads the gateway's frames.
struct Reader {
    socket: TcpStream,
    greeted: bool,
}

impl Reader {
    fn new(socket: TcpStream) -> Self {
        Self { socket, greeted: false }
    }

    async fn serve(mut self) {
        while let Some(stream) = self.request(true).await {
            let body = frame(DATA, END_STREAM, stream, b"fine");
            // The gateway may have left.
            let _ = self.socket.write_all(&[frame(HEADERS, END_HEADERS, stream, OK), body].concat()).await;
        }
    }

    /// The stream of the next request. Pings and settings are acknowledged, if `alive`.
    async fn request(&mut self, alive: bool) -> Option<u32> {
        if !std::mem::replace(&mut self.greeted, true) {
            self.socket.read_exact(&mut [0; 24]).await.ok()?;
        }
        loop {
            match next(&mut self.socket).await? {
                (HEADERS, _, stream, _) => return Some(stream),
                (kind @ (SETTINGS | PING), 0, _, payload) if alive => {
                    let payload = if kind == PING { &payload[..] } else { &[] };
                    self.socket.write_all(&frame(kind, ACK, 0, payload)).await.ok()?;
                }
                _ => {}
            }
        }
    }
}
