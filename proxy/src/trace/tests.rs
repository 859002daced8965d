//! The examples of the recommendation and of its test suite, and laws.

use http::HeaderValue;
use proptest::prelude::*;

use super::*;

type Meaning = Option<(&'static str, &'static str, u8)>;

/// Section 3.2.3 has the first two; the others are the cases of the recommendation's test suite (`test.py`), by their
/// names there. `Some`: trace-id, parent-id and flags as they are understood.
const CASES: &[(&str, &str, Meaning)] = &[
    ("sampled", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", GOOD),
    ("not sampled", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00", GOOD_UNSAMPLED),
    ("version_0x00 with more", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01.", None),
    ("version_0x00 with more", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-what-the-future", None),
    ("version_0xcc", "cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", GOOD),
    ("version_0xcc with more", "cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-what-the-future", GOOD),
    ("version_0xcc with more, no dash", "cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01.what", None),
    ("version_0xff", "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", None),
    ("version_illegal_characters", ".0-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", None),
    ("version_illegal_characters", "0.-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", None),
    ("version_too_long", "000-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", None),
    ("version_too_long", "0000-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", None),
    ("version_too_short", "0-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", None),
    ("trace_id_all_zero", "00-00000000000000000000000000000000-00f067aa0ba902b7-01", None),
    ("trace_id_illegal_characters", "00-.bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", None),
    ("trace_id_illegal_characters", "00-4bf92f3577b34da6a3ce929d0e0e473.-00f067aa0ba902b7-01", None),
    ("trace_id in capitals", "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01", None),
    ("trace_id_too_long", "00-4bf92f3577b34da6a3ce929d0e0e47361-00f067aa0ba902b7-01", None),
    ("trace_id_too_short", "00-4bf92f3577b34da6a3ce929d0e0e473-00f067aa0ba902b7-01", None),
    ("parent_id_all_zero", "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01", None),
    ("parent_id_illegal_characters", "00-4bf92f3577b34da6a3ce929d0e0e4736-.0f067aa0ba902b7-01", None),
    ("parent_id_too_long", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b71-01", None),
    ("parent_id_too_short", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b-01", None),
    ("trace_flags_illegal_characters", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-.0", None),
    ("trace_flags_illegal_characters", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0A", None),
    ("trace_flags_too_long", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-001", None),
    ("trace_flags_too_short", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-1", None),
    ("white space inside", "00-4bf92f3577b34da6a3ce929d0e0e4736 -00f067aa0ba902b7-01", None),
    ("nothing", "", None),
];
const GOOD: Meaning = Some(("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7", 1));
const GOOD_UNSAMPLED: Meaning = Some(("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7", 0));

#[test]
fn the_cases_of_the_recommendation() {
    for (name, value, want) in CASES {
        let want = want.map(|(trace, span, flags)| Parent {
            trace_id: u128::from_str_radix(trace, 16).unwrap(),
            span_id: u64::from_str_radix(span, 16).unwrap(),
            flags,
        });
        assert_eq!(Parent::parse(value.as_bytes()), want, "{name}: {value}");
    }
}

fn headers(parents: &[&str]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for value in parents {
        headers.append(TRACEPARENT, HeaderValue::from_str(value).unwrap());
    }
    headers.append(TRACESTATE, HeaderValue::from_static("a=1"));
    headers.append(TRACESTATE, HeaderValue::from_static("b=2"));
    headers
}

fn take(headers: &mut HeaderMap, wanted: bool) -> Option<Trace> {
    let mut last = 0;
    Trace::take(headers, wanted, || {
        last += 1;
        last
    })
}

#[test]
fn a_valid_parent_goes_on_with_our_span_and_its_state() {
    let mut map = headers(&[CASES[0].1]);
    let trace = take(&mut map, false).unwrap();
    assert_eq!((trace.parent_id, trace.span_id), (Some(0x00f0_67aa_0ba9_02b7), 1));
    assert_eq!(trace.header(), *b"00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000001-01");
    assert!(!map.contains_key(TRACEPARENT));
    assert_eq!(map.get_all(TRACESTATE).iter().collect::<Vec<_>>(), ["a=1", "b=2"]);
    let later = take(&mut headers(&[CASES[5].1]), false).unwrap();
    assert_eq!(later.header(), trace.header(), "of a later version what is known of it");
}

#[test]
fn an_invalid_parent_and_two_of_them_begin_a_new_trace() {
    for parents in [&[CASES[7].1][..], &[CASES[0].1, CASES[0].1]] {
        let mut map = headers(parents);
        let trace = take(&mut map, false).unwrap();
        assert_eq!((trace.trace_id, trace.span_id, trace.parent_id), (1 << 64 | 2, 3, None), "{parents:?}");
        assert!(map.is_empty(), "the state of a trace that is given up: {map:?}");
        assert_eq!(trace.header(), *b"00-00000000000000010000000000000002-0000000000000003-02");
    }
}

#[test]
fn who_brings_none_gets_one_if_somebody_reads_it() {
    let mut map = headers(&[]);
    assert_eq!(take(&mut map, false), None);
    assert!(map.contains_key(TRACESTATE), "untouched");
    assert!(take(&mut map, true).unwrap().header().ends_with(b"-02"), "random, and not sampled");
    assert!(!map.contains_key(TRACESTATE), "it says something of another trace");
    assert_ne!(Trace::take(&mut map, true, || 0).unwrap().trace_id, 0, "zero is no number");
}

proptest! {
    #[test]
    fn what_is_written_is_read_again(trace_id in 1u128.., span_id in 1u64.., flags in 0u8..4, parent_id: Option<u64>) {
        let trace = Trace { trace_id, span_id, parent_id, flags };
        prop_assert_eq!(Parent::parse(&trace.header()), Some(Parent { trace_id, span_id, flags }));
    }

    #[test]
    fn one_wrong_byte_is_never_read_as_the_same(at in 0usize..LENGTH, byte: u8) {
        let good = CASES[0].1.as_bytes();
        let mut bytes = good.to_vec();
        bytes[at] = byte;
        let read = Parent::parse(&bytes);
        // Versions but ff are read alike.
        prop_assert!(bytes == good || read != Parent::parse(good) || at < 2, "{:?}", read);
        if let Some(parent) = read {
            prop_assert!(parent.trace_id != 0 && parent.span_id != 0);
            prop_assert!(byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte) || bytes == good);
        }
    }

    #[test]
    fn no_bytes_are_too_odd(bytes: Vec<u8>) {
        if let Some(parent) = Parent::parse(&bytes) {
            prop_assert!(bytes.len() >= LENGTH && parent.trace_id != 0);
        }
    }
}
