//! HTTP/2: header blocks, pseudo-header fields, frames and floods (SE-04, SE-05, PX-13).

use crate::{Row, excerpt, wire::*};

const ACME: &str = "/clusters/org:acme/api";
const MALFORMED: &str = "RST_STREAM PROTOCOL_ERROR, open";
const PROTOCOL: &str = "GOAWAY PROTOCOL_ERROR, closed";
const CALM: &str = "GOAWAY ENHANCE_YOUR_CALM, closed";
const ALL: u8 = END_STREAM | END_HEADERS;

/// A request of these fields without a body.
fn fields(what: &'static str, fields: &[(&str, &str)], answer: &'static str) -> Row {
    let shown: Vec<_> =
        fields.iter().map(|(name, value)| format!("{name}: {value}").escape_default().to_string()).collect();
    Row::h2(what, &excerpt(shown.join(" / ")), head(1, END_STREAM, fields), answer)
}

/// A GET with these fields more.
fn more(what: &'static str, fields: &[(&str, &str)], answer: &'static str) -> Row {
    let shown: Vec<_> =
        fields.iter().map(|(name, value)| format!("{name}: {value}").escape_default().to_string()).collect();
    Row::h2(what, &excerpt(format!("GET, {}", shown.join(" / "))), head(1, END_STREAM, &get(ACME, fields)), answer)
}

/// Frames that end the connection.
fn ends(what: &'static str, shown: &str, frames: Vec<u8>, answer: &'static str) -> Row {
    Row::h2(what, shown, frames, answer).without_answer()
}

pub fn rows() -> Vec<Row> {
    [requests(), sizes(), bodies(), frames(), floods()].into_iter().flatten().collect()
}

fn requests() -> Vec<Row> {
    let path = |what, path, answer| fields(what, &get(path, &[]), answer);
    vec![
        path("an ordinary request", ACME, "200, open").seen(&["GET /clusters/org:acme/api"]),
        path("dot segments", "/clusters/org:acme/../org:beta/api", "400 BadRequest, open"),
        path("encoded dot segments", "/clusters/org:acme/%2e%2e/org:beta/api", "400 BadRequest, open"),
        path("two slashes in front", "//clusters/org:acme/api", "400 BadRequest, open"),
        path("a second prefix", "/clusters/org:acme/clusters/org:beta/api", "404 NotFound, open"),
        path("a path without a slash", "clusters/org:acme/api", MALFORMED),
        path("the path *", "*", "400 BadRequest, open"),
        path("an empty path", "", MALFORMED),
        path("a path with a space", "/clusters/org:acme/api HTTP/1.1", MALFORMED),
        path("a path with a line end", "/clusters/org:acme/api\r\nX-Remote-User: admin", MALFORMED),
        fields("no path", &[(":method", "GET"), (":scheme", "http"), (":authority", "door")], MALFORMED),
        fields("no method", &[(":scheme", "http"), (":authority", "door"), (":path", ACME)], MALFORMED),
        fields("no scheme", &[(":method", "GET"), (":authority", "door"), (":path", ACME)], MALFORMED),
        more("two paths", &[(":path", "/clusters/org:beta/api")], MALFORMED),
        more("a pseudo-header field behind others", &[("x", "y"), (":path", "/clusters/org:beta/api")], MALFORMED),
        more("an unknown pseudo-header field", &[(":cluster", "org:beta")], PROTOCOL),
        more("a name in capitals", &[("X-Remote-User", "admin")], PROTOCOL),
        more("a name with a line end", &[("x\r\nx-remote-user", "admin")], PROTOCOL),
        more("a value with a line end", &[("x", "y\r\nx-remote-user: admin")], PROTOCOL),
        more("a value with a NUL", &[("x", "a\0b")], PROTOCOL),
        more("another host than the authority", &[("host", "elsewhere")], "400 BadRequest, open"),
        more("a connection field", &[("connection", "close")], MALFORMED),
        more("a transfer coding", &[("transfer-encoding", "chunked")], MALFORMED),
        more("TE other than trailers", &[("te", "gzip")], MALFORMED),
        more("an upgrade", &[("upgrade", "websocket")], MALFORMED),
        more("identity headers", &[("x-remote-user", "admin"), ("x_remote_group", "system:masters")], "200, open")
            .seen(&["GET /clusters/org:acme/api"]),
        more("another expectation", &[("expect", "magic")], "417 Status, open"),
        fields("CONNECT", &[(":method", "CONNECT"), (":authority", "door:1")], "405 MethodNotAllowed, open"),
        fields("extended CONNECT", &request("CONNECT", ACME, &[(":protocol", "websocket")]), MALFORMED),
    ]
}

fn sizes() -> Vec<Row> {
    let many: Vec<_> = (0..101).map(|i| format!("x-{i}")).collect();
    let many: Vec<_> = many.iter().map(|name| (&**name, "y")).collect();
    let (long, longer) = ("y".repeat(70_000), "y".repeat(300_000));
    // An entry of 4,000 bytes in the table, then a thousand references of one byte each.
    let mut bomb = vec![0x40, 1, b'x', 0x7f, 0xa1, 0x1e];
    bomb.extend(vec![b'y'; 4000]);
    bomb.extend(vec![0xbe; 1000]);
    let bomb = [block(&get(ACME, &[])), bomb].concat();
    vec![
        more("101 header fields", &many, "431 Status, open"),
        more("70,000 bytes of headers", &[("authorization", &long)], "431 Status, open"),
        more("300,000 bytes of headers", &[("authorization", &longer)], "431 without a Status, open"),
        Row::h2(
            "a header block that is small only on the wire",
            "1,000 references to a field of 4,000 bytes",
            frame(HEADERS, ALL, 1, &bomb),
            CALM,
        ),
    ]
}

fn bodies() -> Vec<Row> {
    let post = |fields: &[(&str, &str)]| head(1, 0, &request("POST", ACME, fields));
    let large = || {
        let parts = (0..3).flat_map(|_| frame(DATA, 0, 1, &[b'x'; 16 << 10]));
        post(&[]).into_iter().chain(parts).collect::<Vec<u8>>()
    };
    const BROKEN: &[&str] = &["POST /clusters/org:acme/api (broken off)"];
    vec![
        Row::h2(
            "fewer bytes than the length",
            "POST, content-length: 5, DATA 'abc' END_STREAM",
            [post(&[("content-length", "5")]), frame(DATA, END_STREAM, 1, b"abc")].concat(),
            MALFORMED,
        ),
        Row::h2(
            "more bytes than the length",
            "POST, content-length: 2, DATA 'abc'",
            [post(&[("content-length", "2")]), frame(DATA, END_STREAM, 1, b"abc")].concat(),
            MALFORMED,
        ),
        Row::h2(
            "a length that is none",
            "POST, content-length: +2",
            [post(&[("content-length", "+2")]), frame(DATA, END_STREAM, 1, b"ab")].concat(),
            MALFORMED,
        ),
        Row::h2(
            "two unequal lengths",
            "POST, content-length: 2 / content-length: 3",
            [post(&[("content-length", "2"), ("content-length", "3")]), frame(DATA, END_STREAM, 1, b"ab")].concat(),
            MALFORMED,
        ),
        Row::h2(
            "a body over the limit by its length",
            "POST, content-length: 32769",
            post(&[("content-length", "32769")]),
            "413 RequestEntityTooLarge, open",
        ),
        Row::h2("a body over the limit", "POST, 3 DATA frames of 16 KiB", large(), "413 RequestEntityTooLarge, open")
            .seen(BROKEN),
        Row::h2(
            "a body that does not go on",
            "POST, content-length: 10, no DATA",
            post(&[("content-length", "10")]),
            "408 Status, open",
        )
        .seen(BROKEN),
        Row::h2(
            "an answer that the client takes no byte of",
            "SETTINGS_INITIAL_WINDOW_SIZE 0, GET",
            [frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0]), head(1, END_STREAM, &get(ACME, &[]))].concat(),
            "RST_STREAM CANCEL, open",
        )
        .seen(&["GET /clusters/org:acme/api"]),
    ]
}

fn frames() -> Vec<Row> {
    let get = || head(1, END_STREAM, &get(ACME, &[]));
    let open = || block(&request("POST", ACME, &[]));
    vec![
        ends("CONTINUATION of nothing", "CONTINUATION", frame(CONTINUATION, END_HEADERS, 1, b"x"), PROTOCOL),
        ends(
            "a frame inside a header block",
            "HEADERS without END_HEADERS, DATA",
            [frame(HEADERS, 0, 1, &open()), frame(DATA, 0, 1, b"x")].concat(),
            PROTOCOL,
        ),
        ends(
            "CONTINUATION of another stream",
            "HEADERS without END_HEADERS, CONTINUATION of stream 3",
            [frame(HEADERS, 0, 1, &open()), frame(CONTINUATION, END_HEADERS, 3, b"")].concat(),
            PROTOCOL,
        ),
        ends(
            "a frame over the size",
            "DATA of 16,385 bytes",
            [frame(HEADERS, END_HEADERS, 1, &open()), frame(DATA, 0, 1, &[0; (16 << 10) + 1])].concat(),
            "GOAWAY FRAME_SIZE_ERROR, closed",
        ),
        ends(
            "an index that is none",
            "HEADERS with index 127",
            frame(HEADERS, ALL, 1, &[0xff, 0]),
            "GOAWAY PROTOCOL_ERROR, closed",
        ),
        ends("an even stream", "HEADERS of stream 2", frame(HEADERS, ALL, 2, &open()), PROTOCOL),
        ends("stream 0", "HEADERS of stream 0", frame(HEADERS, ALL, 0, &open()), PROTOCOL),
        ends("DATA of stream 0", "DATA", frame(DATA, 0, 0, b"x"), PROTOCOL),
        ends("DATA of a stream that is not open", "DATA of stream 5", frame(DATA, 0, 5, b"x"), PROTOCOL),
        ends(
            "padding over the payload",
            "DATA PADDED 200 of 3 bytes",
            [frame(HEADERS, END_HEADERS, 1, &open()), frame(DATA, 0x8, 1, &[200, 0, 0])].concat(),
            PROTOCOL,
        ),
        ends("a window that grows by nothing", "WINDOW_UPDATE 0", frame(WINDOW_UPDATE, 0, 0, &[0; 4]), PROTOCOL),
        ends(
            "a window that overflows",
            "WINDOW_UPDATE 2^31-1, twice",
            frame(WINDOW_UPDATE, 0, 0, &[0x7f, 255, 255, 255]).repeat(2),
            "GOAWAY FLOW_CONTROL_ERROR, closed",
        ),
        ends(
            "a window over 2^31-1",
            "SETTINGS_INITIAL_WINDOW_SIZE 2^31",
            frame(SETTINGS, 0, 0, &[0, 4, 0x80, 0, 0, 0]),
            PROTOCOL,
        ),
        ends("settings of five bytes", "SETTINGS of 5 bytes", frame(SETTINGS, 0, 0, &[0; 5]), PROTOCOL),
        ends("settings of a stream", "SETTINGS of stream 1", frame(SETTINGS, 0, 1, &[]), PROTOCOL),
        ends("a ping of seven bytes", "PING of 7 bytes", frame(PING, 0, 0, &[0; 7]), PROTOCOL),
        ends("a push by the client", "PUSH_PROMISE", frame(PUSH_PROMISE, END_HEADERS, 1, &[0, 0, 0, 2]), PROTOCOL),
        ends("an unknown frame", "a frame of type 0xbb", frame(0xbb, 0, 0, b"x"), "open"),
        Row::h2(
            "a stream that depends on itself",
            "PRIORITY of stream 1 on stream 1, GET",
            [frame(PRIORITY, 0, 1, &[0, 0, 0, 1, 0]), get()].concat(),
            "RST_STREAM PROTOCOL_ERROR, open",
        ),
        ends(
            "a preface of another length",
            "SM without its line ends, GET",
            [b"SM".to_vec(), get()].concat(),
            "GOAWAY FRAME_SIZE_ERROR, closed",
        ),
    ]
}

fn floods() -> Vec<Row> {
    let open = block(&request("POST", ACME, &[]));
    let streams = |n: u32| (0..n).map(|i| 2 * i + 1);
    let reset = |stream| {
        [frame(HEADERS, ALL, stream, &block(&get(ACME, &[]))), frame(RST_STREAM, 0, stream, &[0, 0, 0, 8])].concat()
    };
    vec![
        ends(
            "a header block without end",
            "HEADERS without END_HEADERS, 10,000 CONTINUATION frames of a byte",
            [frame(HEADERS, 0, 1, &open), frame(CONTINUATION, 0, 1, b"\0").repeat(10_000)].concat(),
            CALM,
        ),
        ends("rapid reset", "10,000 times HEADERS, RST_STREAM", streams(10_000).flat_map(reset).collect(), CALM),
        ends(
            "resets of streams that are none any more",
            "200 times RST_STREAM of stream 1",
            [reset(1), frame(RST_STREAM, 0, 1, &[0, 0, 0, 8]).repeat(200)].concat(),
            CALM,
        ),
        ends("a flood of pings", "10,000 PING frames", frame(PING, 0, 0, &[7; 8]).repeat(10_000), CALM),
        ends("a flood of settings", "10,000 SETTINGS frames", frame(SETTINGS, 0, 0, &[]).repeat(10_000), CALM),
        ends(
            "a flood of priorities",
            "10,000 PRIORITY frames",
            frame(PRIORITY, 0, 1, &[0, 0, 0, 0, 1]).repeat(10_000),
            CALM,
        ),
        ends("a flood of unknown frames", "10,000 frames of type 0xbb", frame(0xbb, 0, 0, &[]).repeat(10_000), CALM),
        ends(
            "a flood of empty DATA",
            "POST, 10,000 DATA frames of no byte",
            [frame(HEADERS, END_HEADERS, 1, &open), frame(DATA, 0, 1, &[]).repeat(10_000)].concat(),
            CALM,
        ),
        Row::h2(
            "an eleventh stream",
            "11 POST without END_STREAM",
            streams(11).flat_map(|stream| frame(HEADERS, END_HEADERS, stream, &open)).collect(),
            "RST_STREAM REFUSED_STREAM, open",
        )
        .seen(&["POST /clusters/org:acme/api (broken off)"; 10]),
    ]
}
