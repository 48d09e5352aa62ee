//! `SubscribeToShard`: the event stream and its rules.

use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use ciborium::cbor;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde_json::{Value, json};
use shardfleet_local::{FaultAction, FaultRule, KinesisControls, ServiceLimits};

use crate::client::{CBOR, Client, DEADLINE, JSON, Kinesis, payloads, shard, text, with_stream};

/// One frame of an event stream.
#[derive(Debug)]
struct Frame {
    kind: String,
    payload: Bytes,
}

impl Frame {
    fn json(&self) -> Value {
        serde_json::from_slice(&self.payload).unwrap()
    }
}

struct Events {
    body: Incoming,
    buffer: BytesMut,
}

impl Events {
    /// The next frame; `Ok(None)` at the stream's end, an error where the connection was cut.
    async fn next(&mut self) -> Result<Option<Frame>, hyper::Error> {
        loop {
            if let Some(frame) = parse(&mut self.buffer) {
                return Ok(Some(frame));
            }
            let next = tokio::time::timeout(DEADLINE, self.body.frame())
                .await
                .expect("no frame in time");
            let Some(frame) = next.transpose()? else {
                assert!(self.buffer.is_empty(), "half a frame");
                return Ok(None);
            };
            self.buffer
                .extend_from_slice(frame.data_ref().map_or(&[][..], |d| d));
        }
    }

    async fn event(&mut self) -> Value {
        let frame = self.next().await.unwrap().expect("the stream ended");
        assert_eq!(frame.kind, "SubscribeToShardEvent", "{frame:?}");
        frame.json()
    }
}

/// Takes a whole frame off the buffer and checks its lengths and checksums.
fn parse(buffer: &mut BytesMut) -> Option<Frame> {
    let total = u32::from_be_bytes(buffer.get(..4)?.try_into().unwrap()) as usize;
    if buffer.len() < total {
        return None;
    }
    let frame = buffer.split_to(total).freeze();
    let number = |at: usize| u32::from_be_bytes(frame[at..at + 4].try_into().unwrap());
    assert_eq!(number(8), crc32fast::hash(&frame[..8]));
    assert_eq!(number(total - 4), crc32fast::hash(&frame[..total - 4]));
    let mut headers = frame.slice(12..12 + number(4) as usize);
    let payload = frame.slice(12 + number(4) as usize..total - 4);
    let mut kind = String::new();
    while headers.has_remaining() {
        let name_length = headers.get_u8().into();
        let name = headers.split_to(name_length);
        assert_eq!(headers.get_u8(), 7);
        let value_length = headers.get_u16().into();
        let value = headers.split_to(value_length);
        if name.as_ref() == b":event-type" || name.as_ref() == b":exception-type" {
            kind = String::from_utf8(value.to_vec()).unwrap();
        }
    }
    Some(Frame { kind, payload })
}

fn request(consumer: &str, shard: &str, position: &Value) -> Value {
    json!({"ConsumerARN": consumer, "ShardId": shard, "StartingPosition": position})
}

async fn open(client: &Client, consumer: &str, position: Value) -> Events {
    let body = request(consumer, &shard(0), &position);
    let response = client
        .send("SubscribeToShard", JSON, body.to_string())
        .await
        .unwrap();
    assert_eq!(response.status(), 200);
    assert_eq!(
        response.headers()["content-type"],
        "application/vnd.amazon.eventstream"
    );
    Events {
        body: response.into_body(),
        buffer: BytesMut::new(),
    }
}

/// Opens a subscription and takes its first frame.
async fn subscribe(client: &Client, consumer: &str, position: Value) -> Events {
    let mut events = open(client, consumer, position).await;
    let first = events.next().await.unwrap().unwrap();
    assert_eq!(
        (first.kind.as_str(), first.json()),
        ("initial-response", json!({}))
    );
    events
}

async fn with_consumer() -> (Kinesis, String) {
    let k = with_stream(1).await;
    let consumer = k.controls.register_consumer("s", "c").unwrap();
    (k, consumer)
}

#[tokio::test]
async fn records_arrive_as_they_are_put_until_the_shard_ends() {
    let (k, consumer) = with_consumer().await;
    k.controls.put("s", "k", "before").unwrap();
    for client in [k.client.clone(), Client::http2(&k.service.endpoint())] {
        let mut events = subscribe(&client, &consumer, json!({"Type": "TRIM_HORIZON"})).await;
        let first = events.event().await;
        assert_eq!(payloads(&first), ["before"]);
        assert_eq!(
            first["ContinuationSequenceNumber"],
            first["Records"][0]["SequenceNumber"]
        );
        k.controls.advance(Duration::from_secs(6));
    }
    let mut events = subscribe(&k.client, &consumer, json!({"Type": "LATEST"})).await;
    let put = k.controls.put("s", "k", "live").unwrap();
    let live = events.event().await;
    assert_eq!(payloads(&live), ["live"]);
    assert_eq!(live["ContinuationSequenceNumber"], put.sequence_number);
    assert_eq!(live.get("ChildShards"), None);
    k.controls.split("s", &shard(0)).unwrap();
    let end = events.event().await;
    assert_eq!(
        (payloads(&end).len(), end.get("ContinuationSequenceNumber")),
        (0, None)
    );
    assert_eq!(end["ChildShards"].as_array().unwrap().len(), 2);
    assert_eq!(end["ChildShards"][0]["ParentShards"], json!([shard(0)]));
    assert!(events.next().await.unwrap().is_none());

    // The end comes again to whoever subscribes at the end, and a continuation is a good position.
    k.controls.advance(Duration::from_secs(6));
    let position =
        json!({"Type": "AFTER_SEQUENCE_NUMBER", "SequenceNumber": live["ContinuationSequenceNumber"]});
    let mut events = subscribe(&k.client, &consumer, position).await;
    assert!(events.event().await["ChildShards"].is_array());
}

#[tokio::test]
async fn idle_events_carry_a_continuation() {
    let (k, consumer) = with_consumer().await;
    k.controls
        .update_settings(|s| s.subscription_idle_time = Duration::from_millis(50));
    let mut events = subscribe(&k.client, &consumer, json!({"Type": "LATEST"})).await;
    let first = events.event().await;
    assert_eq!(
        (payloads(&first).len(), &first["MillisBehindLatest"]),
        (0, &json!(0))
    );
    let continuation = text(&first["ContinuationSequenceNumber"]);
    events.event().await;
    k.controls.put("s", "k", "x").unwrap();
    let iterator = k
        .client
        .iterator_at("s", &shard(0), "AFTER_SEQUENCE_NUMBER", &continuation)
        .await;
    assert_eq!(payloads(&k.client.get(&iterator).await), ["x"]);
}

#[tokio::test]
async fn five_seconds_then_a_takeover() {
    let (k, consumer) = with_consumer().await;
    k.controls.use_manual_clock(1_900_000_000_000);
    let mut old = subscribe(&k.client, &consumer, json!({"Type": "LATEST"})).await;
    k.controls.advance(Duration::from_millis(4999));
    let body = request(&consumer, &shard(0), &json!({"Type": "LATEST"}));
    let message = k
        .client
        .err("SubscribeToShard", body, "ResourceInUseException")
        .await;
    assert!(
        message.starts_with("Another active subscription exists for this consumer"),
        "{message}"
    );
    k.controls.advance(Duration::from_millis(1));
    let mut new = subscribe(&k.client, &consumer, json!({"Type": "LATEST"})).await;
    let last = old.next().await.unwrap().unwrap();
    assert_eq!(last.kind, "ResourceInUseException");
    assert!(old.next().await.unwrap().is_none());
    k.controls.put("s", "k", "x").unwrap();
    assert_eq!(payloads(&new.event().await), ["x"]);
}

#[tokio::test]
async fn a_subscription_lasts_five_minutes() {
    let (k, consumer) = with_consumer().await;
    k.controls.use_manual_clock(1_900_000_000_000);
    let mut events = subscribe(&k.client, &consumer, json!({"Type": "LATEST"})).await;
    k.controls.advance(Duration::from_secs(299));
    k.controls.put("s", "k", "x").unwrap();
    assert_eq!(payloads(&events.event().await), ["x"]);
    k.controls.advance(Duration::from_secs(1));
    assert!(events.next().await.unwrap().is_none());
}

#[tokio::test]
async fn the_consumer_or_the_stream_goes_away() {
    let (k, consumer) = with_consumer().await;
    let mut events = subscribe(&k.client, &consumer, json!({"Type": "LATEST"})).await;
    k.client
        .ok("DeregisterStreamConsumer", json!({"ConsumerARN": consumer}))
        .await;
    assert_eq!(
        events.next().await.unwrap().unwrap().kind,
        "ResourceNotFoundException"
    );
    let consumer = k.controls.register_consumer("s", "d").unwrap();
    let mut events = subscribe(&k.client, &consumer, json!({"Type": "LATEST"})).await;
    k.controls.delete_stream("s").unwrap();
    assert_eq!(
        events.next().await.unwrap().unwrap().kind,
        "ResourceNotFoundException"
    );
    assert!(events.next().await.unwrap().is_none());
}

#[tokio::test]
async fn subscriptions_that_are_refused() {
    let (k, consumer) = with_consumer().await;
    let c = &k.client;
    let latest = json!({"Type": "LATEST"});
    let none = format!("{}/consumer/none:1", KinesisControls::stream_arn("s"));
    c.err(
        "SubscribeToShard",
        request(&none, &shard(0), &latest),
        "ResourceNotFoundException",
    )
    .await;
    c.err(
        "SubscribeToShard",
        request(&consumer, &shard(5), &latest),
        "ResourceNotFoundException",
    )
    .await;
    let foreign = json!({"Type": "AT_SEQUENCE_NUMBER", "SequenceNumber": "5"});
    c.err(
        "SubscribeToShard",
        request(&consumer, &shard(0), &foreign),
        "InvalidArgumentException",
    )
    .await;
    let bare = json!({"Type": "AT_SEQUENCE_NUMBER"});
    c.err(
        "SubscribeToShard",
        request(&consumer, &shard(0), &bare),
        "InvalidArgumentException",
    )
    .await;
    c.err(
        "SubscribeToShard",
        request(&consumer, &shard(0), &json!(null)),
        "ValidationException",
    )
    .await;
    let future = json!({"Type": "AT_TIMESTAMP", "Timestamp": 9.0e9});
    c.err(
        "SubscribeToShard",
        request(&consumer, &shard(0), &future),
        "InvalidArgumentException",
    )
    .await;
}

#[tokio::test]
async fn events_in_cbor() {
    let (k, consumer) = with_consumer().await;
    k.controls.put("s", "k", "x").unwrap();
    let body = cbor!({
        "ConsumerARN" => consumer, "ShardId" => shard(0), "StartingPosition" => {"Type" => "TRIM_HORIZON"},
    });
    let mut bytes = Vec::new();
    ciborium::into_writer(&body.unwrap(), &mut bytes).unwrap();
    let response = k.client.send("SubscribeToShard", CBOR, bytes).await.unwrap();
    let mut events = Events {
        body: response.into_body(),
        buffer: BytesMut::new(),
    };
    assert_eq!(events.next().await.unwrap().unwrap().payload.as_ref(), [0xA0]);
    let event: ciborium::Value =
        ciborium::from_reader(events.next().await.unwrap().unwrap().payload.as_ref()).unwrap();
    let keys: Vec<&str> = event
        .as_map()
        .unwrap()
        .iter()
        .filter_map(|(k, _)| k.as_text())
        .collect();
    assert_eq!(
        keys,
        ["Records", "ContinuationSequenceNumber", "MillisBehindLatest"]
    );
}

#[tokio::test]
async fn a_subscription_gets_two_mebibytes_a_second() {
    let (k, consumer) = with_consumer().await;
    k.controls.use_manual_clock(1_900_000_000_000);
    k.controls.set_limits(ServiceLimits::aws());
    for _ in 0..3 {
        k.controls.put("s", "k", vec![b'x'; 1_000_000]).unwrap();
    }
    let mut events = subscribe(&k.client, &consumer, json!({"Type": "TRIM_HORIZON"})).await;
    assert_eq!(payloads(&events.event().await).len(), 1);
    let early = tokio::time::timeout(Duration::from_millis(50), events.next()).await;
    assert!(early.is_err(), "sent ahead of the clock");
    k.controls.advance(Duration::from_millis(500));
    assert_eq!(payloads(&events.event().await).len(), 1);
}

#[tokio::test]
async fn streams_that_go_wrong() {
    let (k, consumer) = with_consumer().await;
    for i in 0..3 {
        k.controls.put("s", "k", format!("{i}")).unwrap();
    }
    let reopen = |fault: FaultAction| {
        k.controls.clear_faults();
        k.controls.advance(Duration::from_secs(6));
        k.controls
            .add_fault(FaultRule::new("SubscribeToShard", fault).once());
        subscribe(&k.client, &consumer, json!({"Type": "TRIM_HORIZON"}))
    };
    let mut cut = reopen(FaultAction::StreamCut { after_events: 1 }).await;
    assert_eq!(payloads(&cut.event().await).len(), 3);
    assert!(cut.next().await.is_err());

    let mut at_once = reopen(FaultAction::StreamCut { after_events: 0 }).await;
    assert!(at_once.next().await.is_err());

    let code = "InternalFailureException".to_owned();
    let exception = FaultAction::StreamException {
        after_events: 1,
        code,
        message: "oh".into(),
    };
    let mut failed = reopen(exception).await;
    failed.event().await;
    let last = failed.next().await.unwrap().unwrap();
    assert_eq!(
        (last.kind.as_str(), last.json()),
        ("InternalFailureException", json!({"message": "oh"}))
    );
    assert!(failed.next().await.unwrap().is_none());

    let mut ended = reopen(FaultAction::StreamEnd { after_events: 1 }).await;
    ended.event().await;
    assert!(ended.next().await.unwrap().is_none());

    k.controls
        .update_settings(|s| s.subscription_idle_time = Duration::from_millis(10));
    let mut stalled = reopen(FaultAction::StreamStall { after_events: 1 }).await;
    stalled.event().await;
    assert!(
        tokio::time::timeout(Duration::from_millis(100), stalled.next())
            .await
            .is_err()
    );

    k.controls.advance(Duration::from_secs(6));
    k.controls
        .add_fault(FaultRule::new("SubscribeToShard", FaultAction::StreamSilent).once());
    let mut silent = open(&k.client, &consumer, json!({"Type": "TRIM_HORIZON"})).await;
    assert!(
        tokio::time::timeout(Duration::from_millis(100), silent.next())
            .await
            .is_err()
    );
}
