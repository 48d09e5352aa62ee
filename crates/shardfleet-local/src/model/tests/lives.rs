//! What is kept, and how states pass.

use super::*;

#[test]
fn a_journal_s_changes_make_the_same_account_again() {
    let start = 1_700_000_000_000;
    let settings = KinesisSettings::default().with_transition_time(std::time::Duration::ZERO);
    let mut account = Account::new(settings.clone(), true);
    let mut restored = Account::new(settings, true);
    account
        .create_stream(NewStream::provisioned("s", 2), at(start))
        .unwrap();
    put(&mut account, 0, "a", at(start + 1));
    let mut changes = account.take_changes();
    reshard(&mut account, |s| s.plan_scale(4), at(start + 2));
    put(&mut account, 0, "b", at(start + 3));
    let (s, settings) = account
        .stream_and_settings(StreamRef::by_name("s"), at(start + 3))
        .unwrap();
    let settings = settings.clone();
    s.register_consumer(
        "c",
        BTreeMap::from([("k".into(), "v".into())]),
        at(start + 3),
        &settings,
    )
    .unwrap();
    changes.extend(account.take_changes());
    assert!(account.take_changes().is_empty());
    for change in changes {
        match change {
            Change::Deleted { stream_id } => restored.restore_deletion(stream_id),
            Change::Stream(snapshot) => {
                let text = serde_json::to_string(&snapshot).unwrap();
                restored.restore_stream(serde_json::from_str(&text).unwrap());
            }
            Change::Records { stream_id, records } => {
                for (shard, r) in records {
                    assert!(restored.restore_record(
                        stream_id,
                        shard,
                        r.index,
                        r.arrival_ms,
                        r.key.clone(),
                        r.data.clone()
                    ));
                }
            }
        }
    }
    restored.finish_restore();
    let now = at(start + 10);
    let describe = |account: &mut Account| {
        let s = stream(account, now);
        let shards: Vec<String> = s.shards.values().map(|s| format!("{:?}", s.meta)).collect();
        let records: Vec<_> = s
            .shards
            .values()
            .flat_map(|s| s.records().map(|r| (r.sequence, r.data.clone())))
            .collect();
        (
            shards,
            records,
            s.meta
                .consumers
                .iter()
                .map(|c| (c.name.clone(), c.tags.clone()))
                .collect::<Vec<_>>(),
        )
    };
    assert_eq!(describe(&mut account), describe(&mut restored));
    let (_, before) = put(&mut account, 0, "c", now);
    let (_, after) = put(&mut restored, 0, "c", now);
    assert!(
        before < after,
        "a number that may have been given out is not given out again"
    );
    assert_eq!(
        read_from(&mut restored, 2, &Start::TrimHorizon, now).len()
            + read_from(&mut restored, 0, &Start::TrimHorizon, now).len(),
        3
    );
}

#[test]
fn consumers_and_subscriptions() {
    let start = 1_700_000_000_000;
    let mut account = with_stream(1, at(start));
    let settings = account.settings.clone();
    let s = stream(&mut account, at(start));
    let arn = s
        .register_consumer("c", BTreeMap::new(), at(start), &settings)
        .unwrap()
        .arn("s");
    assert_eq!(
        s.register_consumer("c", BTreeMap::new(), at(start), &settings)
            .unwrap_err()
            .code,
        "ResourceInUseException"
    );
    let (first, second) = (SubscriptionId(1), SubscriptionId(2));
    assert_eq!(
        s.subscribe(&arn, 0, first, at(start), &settings)
            .unwrap_err()
            .code,
        "ResourceInUseException",
        "CREATING"
    );
    let s = stream(&mut account, at(start));
    s.subscribe(&arn, 0, first, at(start), &settings).unwrap();
    assert_eq!(
        s.touch_subscription(&arn, 0, first, at(start + 1), &settings),
        Touch::Live
    );
    assert!(s.subscribe(&arn, 0, second, at(start + 4999), &settings).is_err());
    s.subscribe(&arn, 0, second, at(start + 5000), &settings).unwrap();
    assert_eq!(
        s.touch_subscription(&arn, 0, first, at(start + 5000), &settings),
        Touch::TakenOver
    );
    assert_eq!(
        s.touch_subscription(&arn, 0, second, at(start + 304_999), &settings),
        Touch::Live
    );
    assert_eq!(
        s.touch_subscription(&arn, 0, second, at(start + 305_000), &settings),
        Touch::Ended
    );
    s.deregister_consumer(ConsumerRef::Name("c"), at(start), &settings)
        .unwrap();
    assert_eq!(
        s.touch_subscription(&arn, 0, second, at(start + 5000), &settings),
        Touch::Gone
    );
    let s = stream(&mut account, at(start));
    let again = s
        .register_consumer("c", BTreeMap::new(), at(start), &settings)
        .unwrap()
        .arn("s");
    assert_ne!(arn, again, "a consumer made again has another ARN");
}

#[test]
fn states_pass_with_process_time_even_when_the_clock_stands() {
    let mut account = Account::new(KinesisSettings::default(), false);
    let now = |uptime_ms| Now {
        epoch_ms: 1_700_000_000_000,
        uptime_ms,
    };
    account
        .create_stream(NewStream::provisioned("s", 1), now(0))
        .unwrap();
    assert_eq!(stream(&mut account, now(19)).meta.status, StreamStatus::Creating);
    assert!(account.put(StreamRef::by_name("s"), Vec::new(), now(19)).is_err());
    assert_eq!(stream(&mut account, now(20)).meta.status, StreamStatus::Active);
    account
        .delete_stream(StreamRef::by_name("s"), false, now(20))
        .unwrap();
    assert_eq!(stream(&mut account, now(39)).meta.status, StreamStatus::Deleting);
    assert!(account.stream(StreamRef::by_name("s"), now(40)).is_err());
}
