//! JSON and CBOR, HTTP/1.1 and HTTP/2.

use ciborium::{Value as Cbor, cbor};
use http_body_util::BodyExt;
use serde_json::json;

use crate::client::{CBOR, Client, base64, payloads, shard, text, with_stream};

async fn call(client: &Client, operation: &str, body: &Cbor) -> (u16, Cbor) {
    let mut bytes = Vec::new();
    ciborium::into_writer(body, &mut bytes).unwrap();
    let response = client.send(operation, CBOR, bytes).await.unwrap();
    let status = response.status().as_u16();
    assert_eq!(response.headers()["content-type"], CBOR);
    let body = response.into_body().collect().await.unwrap().to_bytes();
    let body = if body.is_empty() {
        Cbor::Null
    } else {
        ciborium::from_reader(body.as_ref()).unwrap()
    };
    (status, body)
}

fn field<'a>(value: &'a Cbor, name: &str) -> &'a Cbor {
    let fields = value.as_map().unwrap();
    &fields
        .iter()
        .find(|(key, _)| key.as_text() == Some(name))
        .unwrap_or_else(|| panic!("no {name} in {value:?}"))
        .1
}

#[tokio::test]
async fn cbor_has_byte_strings_and_tagged_times() {
    let k = with_stream(1).await;
    k.controls.use_manual_clock(1_900_000_000_123);
    let record = Cbor::Map(vec![
        (Cbor::from("Data"), Cbor::Bytes(b"\x00\xff".to_vec())),
        (Cbor::from("PartitionKey"), Cbor::from("k")),
    ]);
    let put = Cbor::Map(vec![
        (Cbor::from("StreamName"), Cbor::from("s")),
        (Cbor::from("Records"), Cbor::Array(vec![record])),
    ]);
    let (status, answer) = call(&k.client, "PutRecords", &put).await;
    assert_eq!(
        (status, field(&answer, "FailedRecordCount")),
        (200, &Cbor::from(0))
    );

    let iterator = Cbor::Map(vec![
        (Cbor::from("StreamName"), Cbor::from("s")),
        (Cbor::from("ShardId"), Cbor::from(shard(0))),
        (Cbor::from("ShardIteratorType"), Cbor::from("AT_TIMESTAMP")),
        (
            Cbor::from("Timestamp"),
            Cbor::Tag(1, Box::new(Cbor::from(1_900_000_000_123_u64))),
        ),
    ]);
    let (_, answer) = call(&k.client, "GetShardIterator", &iterator).await;
    let iterator = field(&answer, "ShardIterator").as_text().unwrap();
    let (_, page) = call(
        &k.client,
        "GetRecords",
        &cbor!({"ShardIterator" => iterator, "Limit" => 10}).unwrap(),
    )
    .await;
    let record = &field(&page, "Records").as_array().unwrap()[0];
    assert_eq!(field(record, "Data"), &Cbor::Bytes(b"\x00\xff".to_vec()));
    let time = Cbor::Tag(1, Box::new(Cbor::from(1_900_000_000_123_u64)));
    assert_eq!(field(record, "ApproximateArrivalTimestamp"), &time);
    assert_eq!(field(&page, "MillisBehindLatest"), &Cbor::from(0));

    let (_, summary) = call(
        &k.client,
        "DescribeStreamSummary",
        &cbor!({"StreamName" => "s"}).unwrap(),
    )
    .await;
    assert!(matches!(
        field(
            field(&summary, "StreamDescriptionSummary"),
            "StreamCreationTimestamp"
        ),
        Cbor::Tag(1, _)
    ));
    let (status, empty) = call(&k.client, "DeleteStream", &cbor!({"StreamName" => "s"}).unwrap()).await;
    assert_eq!((status, empty), (200, Cbor::Null));
}

#[tokio::test]
async fn errors_are_cbor_for_cbor() {
    let k = with_stream(1).await;
    let (status, error) = call(
        &k.client,
        "DescribeStream",
        &cbor!({"StreamName" => "none"}).unwrap(),
    )
    .await;
    assert_eq!(
        (status, field(&error, "__type")),
        (400, &Cbor::from("ResourceNotFoundException"))
    );
    assert!(field(&error, "message").as_text().unwrap().contains("none"));
    let broken = k.client.send("ListStreams", CBOR, vec![0xA1]).await.unwrap();
    assert_eq!(broken.status(), 400);
}

#[tokio::test]
async fn http2_without_tls_shares_the_port() {
    let k = with_stream(1).await;
    let h2 = Client::http2(&k.service.endpoint());
    let response = h2.send("ListStreams", "application/json", "{}").await.unwrap();
    assert_eq!(response.version(), hyper::Version::HTTP_2);
    let big = json!({"StreamName": "s", "Data": base64(vec![b'x'; 1_000_000]), "PartitionKey": "k"});
    h2.ok("PutRecord", big).await;
    // Many calls at once over one connection.
    let calls = (0..50).map(|_| async { h2.iterator("s", &shard(0), "TRIM_HORIZON").await });
    let iterators = futures::future::join_all(calls).await;
    let page = h2.get(&iterators[7]).await;
    assert_eq!(payloads(&page)[0].len(), 1_000_000);
    let http1 = k.client.get(&text(&page["NextShardIterator"])).await;
    assert_eq!(payloads(&http1).len(), 0);
}

#[tokio::test]
async fn every_answer_has_a_request_id() {
    let k = with_stream(1).await;
    let mut ids = Vec::new();
    for operation in ["ListStreams", "Unknown"] {
        let response = k.client.send(operation, crate::client::JSON, "{}").await.unwrap();
        ids.push(
            response.headers()["x-amzn-requestid"]
                .to_str()
                .unwrap()
                .to_owned(),
        );
    }
    assert_ne!(ids[0], ids[1]);
}

#[tokio::test]
async fn a_body_beyond_the_limit_is_refused() {
    let k = with_stream(1).await;
    // The service may answer and close before all of it was sent; either is a refusal.
    if let Ok(response) = k
        .client
        .send("PutRecord", crate::client::JSON, vec![b' '; 33 << 20])
        .await
    {
        assert_eq!(response.status(), 413);
    }
    // The refused call's connection is spent, and a pool may not have noticed yet.
    Client::new(&k.service.endpoint())
        .ok("ListStreams", json!({}))
        .await;
}
