//! Requests and answers pass through unchanged, streamed, over HTTP/1.1 and HTTP/2.

mod support;

use http::StatusCode;
use proxy::Gateway;
use support::*;

#[tokio::test]
async fn a_request_reaches_a_remote_and_a_local_shard_over_both_protocols() {
    let seen = Seen::default();
    for options in [options(vec![noting(&seen)]), options(vec![noting_upstream(&seen).await])] {
        let gateway = Gateway::start(options).unwrap();
        gateway.ready().await;
        let path = "/clusters/root:org/apis/apps/v1/deployments?watch=false&x=a%2Fb&x=&y=+";
        let (status, _, body) = once(&gateway, get(path)).await;
        assert_eq!((status, body.as_str()), (StatusCode::OK, "ok"));
        let response = h2(&gateway).await.send_request(get_h2(path)).await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        for parts in seen.take() {
            assert_eq!(parts.uri.to_string(), path);
            assert_eq!(parts.headers["x-forwarded-prefix"], "/clusters/root:org");
            assert_eq!(parts.headers["x-forwarded-for"], "127.0.0.1");
            assert_eq!(parts.headers["x-forwarded-host"], "door");
            assert_eq!(parts.headers["x-remote-user"], "system:anonymous");
            assert_eq!(parts.headers["audit-id"].len(), 36);
        }
        gateway.shutdown(std::time::Duration::from_secs(5)).await;
    }
}
