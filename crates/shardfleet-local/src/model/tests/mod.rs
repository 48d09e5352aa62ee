//! The model, without HTTP.

mod limits;
mod lives;
mod numbers;
mod reading;
mod reshards;

use std::collections::BTreeMap;

use bytes::Bytes;
use proptest::prelude::*;

use super::hash::even_ranges;
use super::sequence::{END_INDEX, Sequence};
use super::*;
use crate::settings::KinesisSettings;

const HOUR_MS: u64 = 3_600_000;

fn at(epoch_ms: u64) -> Now {
    Now {
        epoch_ms,
        uptime_ms: epoch_ms,
    }
}

/// An account whose state changes are immediate.
fn account() -> Account {
    let settings = KinesisSettings::default().with_transition_time(std::time::Duration::ZERO);
    Account::new(settings, false)
}

fn with_stream(shards: u32, now: Now) -> Account {
    let mut account = account();
    account
        .create_stream(NewStream::provisioned("s", shards), now)
        .unwrap();
    account
}

fn stream(account: &mut Account, now: Now) -> &mut Stream {
    account.stream(StreamRef::by_name("s"), now).unwrap()
}

fn put(account: &mut Account, hash: u128, data: &str, now: Now) -> (u32, String) {
    let put = Put {
        key: Bytes::from_static(b"k"),
        explicit_hash: Some(hash),
        data: Bytes::copy_from_slice(data.as_bytes()),
    };
    let answer = account
        .put(StreamRef::by_name("s"), vec![put], now)
        .unwrap()
        .pop()
        .unwrap();
    let (shard, record) = answer.unwrap();
    (shard, String::from_utf8(record.sequence.to_vec()).unwrap())
}

fn iterator(account: &mut Account, shard: u32, start: &Start, now: Now) -> Result<String, ApiError> {
    account.shard_iterator(StreamRef::by_name("s"), &shard_name(shard), start, now)
}

fn read(
    account: &mut Account,
    iterator: &str,
    limit: usize,
    now: Now,
) -> Result<(Vec<String>, u64, bool, u64), ApiError> {
    let token = IteratorToken::decode(iterator).unwrap();
    let (page, _) = account.read(&token, limit, now)?;
    let data = page
        .records
        .iter()
        .map(|r| String::from_utf8(r.data.to_vec()).unwrap())
        .collect();
    Ok((data, page.millis_behind, page.ended, page.next))
}

fn read_from(account: &mut Account, shard: u32, start: &Start, now: Now) -> Vec<String> {
    let iterator = iterator(account, shard, start, now).unwrap();
    read(account, &iterator, 10_000, now).unwrap().0
}

fn reshard(account: &mut Account, plan: impl FnOnce(&Stream) -> Result<Reshard, ApiError>, now: Now) {
    let s = stream(account, now);
    let reshard = plan(s).unwrap();
    s.begin_update(now.uptime_ms, Some(reshard));
    stream(account, now);
}

fn assert_covered(ranges: &[HashRange]) {
    let mut ranges = ranges.to_vec();
    ranges.sort_by_key(|r| r.start);
    assert_eq!(ranges[0].start, 0);
    assert_eq!(ranges[ranges.len() - 1].end, u128::MAX);
    for pair in ranges.windows(2) {
        assert_eq!(pair[0].end + 1, pair[1].start);
    }
}

fn open_ranges(account: &mut Account, now: Now) -> Vec<HashRange> {
    stream(account, now)
        .open_by_range()
        .into_iter()
        .map(|(_, range)| range)
        .collect()
}
