//! HTTP/1.1: heads, lengths, chunks and other protocols on its port (SE-01 to SE-03, PX-13, PX-14).

use crate::{Row, excerpt};

const BAD: &str = "400 BadRequest, closed";
/// A request that hides where another parser reads a body, or the other way round.
const HIDDEN: &str = "GET /clusters/org:beta/api/v1/secrets HTTP/1.1\r\nHost: door\r\n\r\n";

/// A POST with these fields, then `body`, then the hidden request.
fn post(what: &'static str, fields: &str, body: &str, answer: &'static str) -> Row {
    let head = format!("POST /clusters/org:acme/api HTTP/1.1\r\nHost: door\r\n{fields}\r\n");
    let mut row = Row::h1(what, format!("{head}{body}{HIDDEN}"), answer);
    row.shown = excerpt(format!("POST ... {}", format!("{fields}\r\n{body}").escape_default()));
    row
}

fn chunked(what: &'static str, body: &str, answer: &'static str) -> Row {
    post(what, "Transfer-Encoding: chunked\r\n", body, answer)
}

/// A GET with these fields.
fn get(what: &'static str, fields: &str, answer: &'static str) -> Row {
    let mut row = Row::h1(what, format!("GET /clusters/org:acme/api HTTP/1.1\r\nHost: door\r\n{fields}\r\n"), answer);
    row.shown = excerpt(fields.escape_default());
    row
}

pub fn rows() -> Vec<Row> {
    [lengths(), chunks(), heads(), others()].into_iter().flatten().collect()
}

fn lengths() -> Vec<Row> {
    vec![
        post("a length, then a coding", "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n", "0\r\n\r\n", BAD),
        post("a coding, then a length", "Transfer-Encoding: chunked\r\nContent-Length: 4\r\n", "0\r\n\r\n", BAD),
        post("two unequal lengths", "Content-Length: 0\r\nContent-Length: 44\r\n", "", BAD),
        post("two equal lengths", "Content-Length: 2\r\nContent-Length: 2\r\n", "ab", BAD),
        post("a list of equal lengths", "Content-Length: 2, 2\r\n", "ab", BAD),
        post("a length with a sign", "Content-Length: +5\r\n", "abcde", BAD),
        post("a negative length", "Content-Length: -1\r\n", "", BAD),
        post("a length in hexadecimal", "Content-Length: 0x5\r\n", "abcde", BAD),
        post("a length that is empty", "Content-Length: \r\n", "", BAD),
        post("a length over 64 bits", "Content-Length: 18446744073709551621\r\n", "abcde", BAD),
        post("a length with a space inside", "Content-Length: 5 5\r\n", "abcde", BAD),
        post("a length behind a vertical tab", "Content-Length: \x0b5\r\n", "abcde", BAD),
        Row::h1(
            "a padded length",
            format!(
                "POST /clusters/org:acme/api HTTP/1.1\r\nHost: door\r\nContent-Length: {}5\r\n\r\nabcde",
                " ".repeat(30)
            ),
            "200, open",
        )
        .seen(&["POST /clusters/org:acme/api (5 bytes)"]),
        post("a space before the colon", "Content-Length : 5\r\n", "abcde", BAD),
        post("a body over the limit", "Content-Length: 32769\r\n", "", "413 RequestEntityTooLarge, closed"),
        post("a coding that is not known", "Transfer-Encoding: xchunked\r\n", "", BAD),
        post("two codings", "Transfer-Encoding: gzip, chunked\r\n", "0\r\n\r\n", "501 Status, closed"),
        post(
            "chunked twice",
            "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
            "0\r\n\r\n",
            "501 Status, closed",
        ),
        post("chunked, then another", "Transfer-Encoding: chunked, identity\r\n", "0\r\n\r\n", BAD),
        post("the coding identity", "Transfer-Encoding: identity\r\n", "", BAD),
        post("a quoted coding", "Transfer-Encoding: \"chunked\"\r\n", "0\r\n\r\n", BAD),
        post("a coding behind a vertical tab", "Transfer-Encoding: \x0bchunked\r\n", "0\r\n\r\n", BAD),
        post("a coding with a space before the colon", "Transfer-Encoding : chunked\r\n", "0\r\n\r\n", BAD),
        post("a coding on a folded line", "Transfer-Encoding:\r\n chunked\r\n", "0\r\n\r\n", BAD),
        Row::h1(
            "a coding in HTTP/1.0",
            format!("POST /clusters/org:acme/api HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{HIDDEN}"),
            BAD,
        ),
    ]
}

fn chunks() -> Vec<Row> {
    const BROKEN: &[&str] = &["POST /clusters/org:acme/api (broken off)"];
    vec![
        Row::h1(
            "chunks and a trailer",
            "POST /clusters/org:acme/api HTTP/1.1\r\nHost: door\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nX-Sum: 1\r\n\r\n",
            "200, open",
        )
        .seen(&["POST /clusters/org:acme/api (3 bytes)"]),
        chunked("a chunk size with 0x", "0x3\r\nabc\r\n0\r\n\r\n", BAD),
        chunked("a chunk size with a sign", "+3\r\nabc\r\n0\r\n\r\n", BAD),
        chunked("a negative chunk size", "-1\r\nabc\r\n0\r\n\r\n", BAD),
        chunked("a chunk size over 64 bits", "10000000000000003\r\nabc\r\n0\r\n\r\n", BAD),
        chunked("a chunk size that is empty", "\r\nabc\r\n0\r\n\r\n", BAD),
        chunked("a chunk that is longer than it says", "3\r\nabcd\r\n0\r\n\r\n", BAD).seen(BROKEN),
        chunked("a chunk size without CR", "3\nabc\r\n0\r\n\r\n", BAD),
        chunked("a chunk without a line end", "3\r\nabc0\r\n\r\n", BAD).seen(BROKEN),
        chunked("a chunk extension without end", &format!("3;{}\r\nabc\r\n0\r\n\r\n", "x".repeat(20_000)), BAD),
        chunked("a chunk extension with a bare LF", "3;a\nb\r\nabc\r\n0\r\n\r\n", BAD),
        chunked("trailers without end", &format!("0\r\n{}\r\n", "X: y\r\n".repeat(5000)), BAD),
        chunked(
            "chunks over the limit",
            &format!("8001\r\n{}\r\n0\r\n\r\n", "x".repeat(0x8001)),
            "413 RequestEntityTooLarge, closed",
        )
        .seen(BROKEN),
        post("a body that does not go on", "Content-Length: 1000\r\n", "", "408 Status, closed").seen(BROKEN),
    ]
}

fn heads() -> Vec<Row> {
    let many = |n: usize| (0..n).map(|i| format!("X-{i}: y\r\n")).collect::<String>();
    let line = |line: &str| format!("{line}\r\nHost: door\r\n\r\n{HIDDEN}");
    vec![
        Row::h1("no host", "GET /clusters/org:acme/api HTTP/1.1\r\n\r\n", BAD),
        get("two hosts", "Host: elsewhere\r\n", BAD),
        get("a folded line", "X: a\r\n b\r\n", BAD),
        get("a line without a colon", "X\r\n", BAD),
        get("a name with a space", "X Y: a\r\n", BAD),
        get("a name that is empty", ": a\r\n", BAD),
        get("a bare CR in a value", "X: a\rb\r\n", BAD),
        get("a NUL in a value", "X: a\0b\r\n", BAD),
        get("another expectation", "Expect: magic\r\n", "417 Status, closed"),
        get("101 header fields", &many(100), "431 Status, closed"),
        get("70,000 bytes of headers", &format!("X: {}\r\n", "y".repeat(70_000)), "431 Status, closed"),
        get("400,000 bytes of headers", &format!("X: {}\r\n", "y".repeat(400_000)), "431 Status, closed"),
        Row::h1("a head that does not go on", "GET /clusters/org:acme/api HTTP/1.1\r\nHost: do", "closed"),
        Row::h1("a host with a path", "GET /clusters/org:acme/api HTTP/1.1\r\nHost: door/x\r\n\r\n", BAD),
        Row::h1("a host with a user", "GET /clusters/org:acme/api HTTP/1.1\r\nHost: u@door\r\n\r\n", BAD),
        Row::h1("a space before the first field", "GET /clusters/org:acme/api HTTP/1.1\r\n Host: door\r\n\r\n", BAD),
        Row::h1("version 0.9", format!("GET /clusters/org:acme/api\r\n\r\n{HIDDEN}"), BAD),
        Row::h1("version 1.2", line("GET /clusters/org:acme/api HTTP/1.2"), BAD),
        Row::h1("version 2.0 in a request line", line("GET /clusters/org:acme/api HTTP/2.0"), BAD),
        Row::h1(
            "a method in small letters: another method",
            "get /clusters/org:acme/api HTTP/1.1\r\nHost: door\r\n\r\n",
            "200, open",
        )
        .seen(&["get /clusters/org:acme/api"]),
        Row::h1("a method with a slash", line("GE/T /clusters/org:acme/api HTTP/1.1"), BAD),
        Row::h1("two spaces in the request line", line("GET  /clusters/org:acme/api HTTP/1.1"), BAD),
    ]
}

fn others() -> Vec<Row> {
    let acme = "/clusters/org:acme/api";
    let exec = "/clusters/org:acme/api/v1/namespaces/n/pods/p/exec?command=sh";
    vec![
        Row::h1("CONNECT", format!("CONNECT door:1 HTTP/1.1\r\nHost: door:1\r\n\r\n{HIDDEN}"), "405 MethodNotAllowed, closed"),
        get("identity headers", "X-Remote-User: admin\r\nX_Remote_Group: system:masters\r\n", "200, open")
            .seen(&["GET /clusters/org:acme/api"]),
        get("impersonation", "Impersonate-User: admin\r\n", "403 Forbidden, open"),
        get("impersonation with underscores", "Impersonate_User: admin\r\n", "403 Forbidden, open"),
        get("impersonation of groups only", "Impersonate-Group: system:masters\r\n", "403 Forbidden, open"),
        get("hop-by-hop identity", "Connection: close, x-remote-user\r\n", "200, closed")
            .seen(&["GET /clusters/org:acme/api"]),
        get("HTTP/2 by upgrade", "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n", "200, open")
            .seen(&["GET /clusters/org:acme/api"]),
        Row::h1(
            "an upgrade that the shard refuses, and a request behind it",
            format!("GET {exec} HTTP/1.1\r\nHost: door\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\nGET /clusters/org:acme/../x HTTP/1.1\r\nHost: door\r\n\r\n"),
            "200, 400 BadRequest, open",
        )
        .seen(&["GET /clusters/org:acme/api/v1/namespaces/n/pods/p/exec?command=sh"]),
        Row::h1("an admin path", "GET /debug/api_priority_and_fairness/dump_queues HTTP/1.1\r\nHost: door\r\n\r\n", "200, open")
            .seen(&["GET /debug/api_priority_and_fairness/dump_queues"]),
        Row::h1("a TLS hello", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n".to_vec(), BAD),
        Row::h1("an SSH banner", "SSH-2.0-OpenSSH_9.6\r\n\r\n", BAD),
        Row::h1("the PROXY protocol", format!("PROXY TCP4 10.0.0.1 10.0.0.2 1 2\r\nGET {acme} HTTP/1.1\r\nHost: door\r\n\r\n"), BAD),
        Row::h1("a preface of HTTP/2 that is cut", "PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n", BAD),
        Row::h1("a connection that says nothing", "", "closed"),
    ]
}
