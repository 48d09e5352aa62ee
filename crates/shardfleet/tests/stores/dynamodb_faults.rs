//! What failures of DynamoDB look like to the caller, how long they take, and how often a call is tried.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use shardfleet::store::{DynamoDbLeaseStore, LeaseStore, StoreError, StoreErrorKind};
use shardfleet_core::lease::LeaseWrite;

use super::dynamodb::sdk_config;
use super::new_lease;

/// A service that gives every request the same answer, or none.
struct Answering {
    endpoint: String,
    requests: Arc<AtomicU32>,
}

#[derive(Clone, Copy)]
enum Answer {
    Status(u16, &'static str),
    /// The request is read and the connection closed.
    Cut,
    /// The request is read and nothing ever comes.
    Silence,
}

impl Answering {
    fn start(answer: Answer) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let endpoint = format!("http://{}", listener.local_addr().expect("address"));
        let requests = Arc::new(AtomicU32::new(0));
        let counter = requests.clone();
        // Ends with the test's process.
        std::thread::spawn(move || {
            let mut silent = Vec::new();
            for stream in listener.incoming().flatten() {
                let stream = read_request(stream);
                counter.fetch_add(1, Ordering::SeqCst);
                match answer {
                    Answer::Status(status, body) => respond(stream, status, body),
                    Answer::Cut => drop(stream),
                    Answer::Silence => silent.push(stream),
                }
            }
        });
        Self { endpoint, requests }
    }

    fn requests(&self) -> u32 {
        self.requests.load(Ordering::SeqCst)
    }

    fn store(&self) -> DynamoDbLeaseStore {
        DynamoDbLeaseStore::builder_with_sdk_config("orders-app", &sdk_config(&self.endpoint))
            .attempt_timeout(Duration::from_millis(300))
            .build()
    }
}

fn read_request(mut stream: TcpStream) -> TcpStream {
    let mut request = Vec::new();
    let mut part = [0; 4096];
    loop {
        let text = String::from_utf8_lossy(&request).to_lowercase();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head
                .lines()
                .find_map(|line| line.strip_prefix("content-length:")?.trim().parse().ok());
            if body.len() >= length.unwrap_or(0) {
                return stream;
            }
        }
        match stream.read(&mut part) {
            Ok(0) | Err(_) => return stream,
            Ok(read) => request.extend_from_slice(&part[..read]),
        }
    }
}

fn respond(mut stream: TcpStream, status: u16, body: &str) {
    let answer = format!(
        "HTTP/1.1 {status} Whatever\r\ncontent-type: application/x-amz-json-1.0\r\nconnection: close\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(answer.as_bytes()).expect("answer");
}

async fn write(store: &DynamoDbLeaseStore) -> StoreError {
    store
        .update(&LeaseWrite::renew(&new_lease(1), None))
        .await
        .expect_err("must fail")
}

#[tokio::test]
async fn each_answer_has_its_kind_and_a_write_is_sent_once() {
    const SERVICE: &str = "com.amazonaws.dynamodb.v20120810#";
    let cases = [
        (
            400,
            "ProvisionedThroughputExceededException",
            StoreErrorKind::Throttled,
            true,
        ),
        (400, "ThrottlingException", StoreErrorKind::Throttled, true),
        (400, "RequestLimitExceeded", StoreErrorKind::Throttled, true),
        (400, "AccessDeniedException", StoreErrorKind::Unauthorized, true),
        (
            400,
            "UnrecognizedClientException",
            StoreErrorKind::Unauthorized,
            true,
        ),
        (400, "ExpiredTokenException", StoreErrorKind::Unauthorized, true),
        (400, "ResourceNotFoundException", StoreErrorKind::NotFound, true),
        (400, "ValidationException", StoreErrorKind::Invalid, true),
        (500, "InternalServerError", StoreErrorKind::Unavailable, false),
        (503, "ServiceUnavailable", StoreErrorKind::Unavailable, false),
    ];
    for (status, code, kind, refused) in cases {
        let body = format!(r#"{{"__type":"{SERVICE}{code}","message":"what came back"}}"#);
        let service = Answering::start(Answer::Status(status, Box::leak(body.into_boxed_str())));
        let error = write(&service.store()).await;
        assert_eq!(error.kind(), kind, "{code}: {error}");
        assert_eq!(error.has_no_side_effects(), refused, "{code}: {error}");
        let text = error.to_string();
        let expected =
            "writing lease shardId-000000000001 in DynamoDB table orders-app failed: DynamoDB answered";
        assert!(text.starts_with(expected), "{text}");
        assert!(text.contains(code) && text.contains("what came back"), "{text}");
        assert_eq!(service.requests(), 1, "{code}");
    }
}

#[tokio::test]
async fn an_answer_without_a_body_is_unavailable() {
    let service = Answering::start(Answer::Status(500, ""));
    let error = write(&service.store()).await;
    assert_eq!(
        (error.kind(), error.has_no_side_effects()),
        (StoreErrorKind::Unavailable, false),
        "{error}"
    );
}

#[tokio::test]
async fn a_lost_answer_leaves_open_whether_the_write_happened() {
    for answer in [Answer::Cut, Answer::Silence] {
        let service = Answering::start(answer);
        let error = tokio::time::timeout(Duration::from_secs(5), write(&service.store()))
            .await
            .expect("in time");
        assert_eq!(
            (error.kind(), error.has_no_side_effects()),
            (StoreErrorKind::Unavailable, false),
            "{error}"
        );
        assert!(error.is_retryable());
        assert_eq!(service.requests(), 1, "{error}");
    }
}

#[tokio::test]
async fn a_read_is_tried_twice_and_bounded() {
    let service = Answering::start(Answer::Silence);
    let read = async {
        service
            .store()
            .get(&new_lease(1).lease_key)
            .await
            .expect_err("silence")
    };
    let error = tokio::time::timeout(Duration::from_secs(5), read)
        .await
        .expect("in time");
    assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error}");
    assert_eq!(service.requests(), 2);
}

#[tokio::test]
async fn nobody_at_the_endpoint_is_unavailable() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let endpoint = format!("http://{}", listener.local_addr().expect("address"));
    drop(listener);
    let store = DynamoDbLeaseStore::builder_with_sdk_config("orders-app", &sdk_config(&endpoint)).build();
    let error = write(&store).await;
    assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("could not be reached"), "{error}");
}

#[tokio::test]
async fn missing_credentials_are_unauthorized() {
    let service = Answering::start(Answer::Status(500, ""));
    let config = sdk_config(&service.endpoint).into_builder();
    let mut config = config;
    config.set_credentials_provider(None);
    let store = DynamoDbLeaseStore::builder_with_sdk_config("orders-app", &config.build()).build();
    let error = write(&store).await;
    assert_eq!(error.kind(), StoreErrorKind::Unauthorized, "{error}");
    assert!(error.has_no_side_effects());
    assert_eq!(service.requests(), 0);
}

#[tokio::test]
async fn a_table_that_never_gets_ready_ends_the_waiting() {
    let body = r#"{"Table":{"TableName":"orders-app","TableStatus":"CREATING",
        "KeySchema":[{"AttributeName":"leaseKey","KeyType":"HASH"}],
        "AttributeDefinitions":[{"AttributeName":"leaseKey","AttributeType":"S"}]}}"#;
    let service = Answering::start(Answer::Status(200, body));
    let store = DynamoDbLeaseStore::builder_with_sdk_config("orders-app", &sdk_config(&service.endpoint))
        .prepare_deadline(Duration::from_millis(1_500))
        .build();
    let error = store.prepare().await.expect_err("never ready");
    assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("the table is CREATING"), "{error}");
    assert!(
        (2..=3).contains(&service.requests()),
        "{} looks",
        service.requests()
    );
}
