#!/usr/bin/env python3
"""Puts numbered records into a local stream, plain and KPL-aggregated, and writes down what was acknowledged.

    $(scripts/peers.sh path python) peers/producer.py --endpoint-url http://127.0.0.1:4567 \
        --stream orders --shards 4 --records 100000 --ledger ledger.jsonl [--reshard] [--seed 7]

It is the other side in tests of a consumer, so it shares nothing with one: boto3 talks to the service and aws-kinesis-agg
makes the aggregates. Every user record is a JSON object {"key", "n", "id"}: n counts from 0 for each key, id is unique.

What a test may rely on:
- A key's records enter the stream in the order of n. No call holds two entries of one key, and a key's next entry is put only
  once the one before it is acknowledged, so a partial failure cannot overtake.
- A key always goes one way: plain or aggregated.
- All user records of an aggregate have one partition key, so they belong to the same shard, through splits and merges too.
- The ledger has one JSON line for each acknowledged user record: {"key", "n", "id", "shard_id", "sequence_number", "sub"}.
  sub is the record's place in its aggregate, 0 for a plain record. It is flushed after every call.
- Where a call's answer was lost it is repeated, so a record can be in the stream twice; the totals count such calls.

The last line on standard output is a JSON object with totals. Exit code 0 means that every record was acknowledged.
Credentials are made up, so nothing can reach a real account.
"""

import argparse
import collections
import json
import math
import random
import sys
import threading
import time

try:
    import boto3
    from aws_kinesis_agg.aggregator import RecordAggregator
    from botocore.config import Config
    from botocore.exceptions import ClientError, ConnectionError, HTTPClientError
except ImportError as error:
    sys.exit(f"{error}: run scripts/peers.sh install, then use the Python of scripts/peers.sh path python")

MAX_ENTRIES = 500  # AWS: PutRecords
AGGREGATE_RECORDS = (20, 50)
# What the embedded service or a fault rule may answer now and another thing later.
PASSING = {
    "InternalFailure",
    "KMSThrottlingException",
    "LimitExceededException",
    "ProvisionedThroughputExceededException",
    "ResourceInUseException",
    "ServiceUnavailable",
    "ThrottlingException",
}
# Up by two, down by one, up by one, down by two: the stream ends with as many shards as it had.
RESHARD_CYCLE = ("split", "split", "merge", "split", "merge", "merge")


class GaveUp(Exception):
    """Something did not happen before its deadline, or was refused for good."""


class Deadline:
    """A time limit that every wait shares."""

    def __init__(self, seconds):
        self.seconds = seconds
        self.at = time.monotonic() + seconds

    def pause(self, seconds, waiting_for):
        """Waits a little; gives up where the limit has passed."""
        if time.monotonic() > self.at:
            raise GaveUp(f"gave up after {self.seconds:g} s ({waiting_for}); --timeout sets the limit")
        time.sleep(seconds)


def client(endpoint_url):
    return boto3.client(
        "kinesis",
        endpoint_url=endpoint_url,
        region_name="us-east-1",
        aws_access_key_id="local",
        aws_secret_access_key="local",
        # Retries are ours, so that they are counted.
        config=Config(retries={"total_max_attempts": 1}, connect_timeout=5, read_timeout=30),
    )


def is_passing(error):
    if not isinstance(error, ClientError):
        return True
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    return status >= 500 or error.response["Error"]["Code"] in PASSING


class Stream:
    """One stream, with calls that are repeated while the reason passes. Threads may share it, as they may share boto3's clients."""

    def __init__(self, endpoint_url, name, deadline):
        self.client = client(endpoint_url)
        self.name = name
        self.deadline = deadline

    def call(self, operation, **arguments):
        while True:
            try:
                return getattr(self.client, operation)(StreamName=self.name, **arguments)
            except (ClientError, ConnectionError, HTTPClientError) as error:
                if not is_passing(error):
                    raise GaveUp(f"{operation}: {error}") from error
                self.deadline.pause(0.05, f"{operation}: {error}")

    def status(self):
        return self.call("describe_stream_summary")["StreamDescriptionSummary"]["StreamStatus"]

    def wait_active(self):
        while (status := self.status()) != "ACTIVE":
            self.deadline.pause(0.02, f"stream {self.name} is {status}")

    def create(self, shards):
        try:
            self.client.create_stream(StreamName=self.name, ShardCount=shards)
        except self.client.exceptions.ResourceInUseException:
            pass  # It is there already; its shards are left as they are.
        self.wait_active()

    def open_shards(self):
        """Open shards as (first hash key, last hash key, name), in order of their hash keys."""
        shards, arguments = [], {"StreamName": self.name}
        while True:
            answer = self.client.list_shards(**arguments)
            shards += answer["Shards"]
            if not answer.get("NextToken"):
                break
            arguments = {"NextToken": answer["NextToken"]}
        return sorted(
            (int(s["HashKeyRange"]["StartingHashKey"]), int(s["HashKeyRange"]["EndingHashKey"]), s["ShardId"])
            for s in shards
            if "EndingSequenceNumber" not in s["SequenceNumberRange"]
        )

    def split(self, rng):
        first, last, shard = max(self.open_shards(), key=lambda s: s[1] - s[0])
        at = first + 1 + int((last - first - 1) * rng.uniform(0.25, 0.75))
        self.call("split_shard", ShardToSplit=shard, NewStartingHashKey=str(at))

    def merge(self, rng):
        shards = self.open_shards()
        if len(shards) < 2:
            raise GaveUp(f"stream {self.name} has a single open shard: there is nothing to merge")
        left = rng.randrange(len(shards) - 1)
        pair = [shards[left][2], shards[left + 1][2]]
        self.call("merge_shards", ShardToMerge=pair[0], AdjacentShardToMerge=pair[1])


class Resharder(threading.Thread):
    """Splits and merges shards while records are put: step i of n once i/(n+1) of the records are acknowledged.

    It has a thread of its own, so that puts go on while the stream is UPDATING. The producer waits at the next step's mark if
    a step is late, so that every step has records before and after it.
    """

    def __init__(self, stream, steps, records, rng):
        super().__init__(name="resharder", daemon=True)
        self.stream = stream
        self.marks = [records * (i + 1) // (steps + 1) for i in range(steps)]
        self.rng = rng
        self.changed = threading.Condition()
        self.acknowledged = 0
        self.done = 0
        self.failure = None
        self.shard_counts = [len(stream.open_shards())]

    def run(self):
        try:
            for step, mark in enumerate(self.marks):
                with self.changed:
                    self.changed.wait_for(lambda at=mark: self.acknowledged >= at)
                verb = RESHARD_CYCLE[step % len(RESHARD_CYCLE)]
                self.stream.split(self.rng) if verb == "split" else self.stream.merge(self.rng)
                self.stream.wait_active()
                self.shard_counts.append(len(self.stream.open_shards()))
                with self.changed:
                    self.done += 1
                    self.changed.notify_all()
        except Exception as error:  # noqa: BLE001 - handed to the main thread, whatever it is
            with self.changed:
                self.failure = error
                self.changed.notify_all()

    def note(self, acknowledged):
        """Tells how far the records are; waits where the step before the last mark passed is not done yet."""
        with self.changed:
            self.acknowledged = acknowledged
            self.changed.notify_all()
            passed = sum(acknowledged >= mark for mark in self.marks)
            self.wait_for(passed - 1)

    def finish(self):
        with self.changed:
            self.wait_for(len(self.marks))

    def wait_for(self, steps):
        left = max(0.0, self.stream.deadline.at - time.monotonic())
        if not self.changed.wait_for(lambda: self.failure or self.done >= steps, left):
            raise GaveUp(f"step {self.done + 1} of the resharding took too long; --timeout sets the limit")
        if self.failure:
            raise GaveUp(f"resharding: {self.failure}") from self.failure


class Source:
    """Makes entries: a key's next one only after its last one was acknowledged."""

    def __init__(self, options, rng):
        self.rng = rng
        self.left = options.records
        self.share = options.aggregate_share
        self.to_aggregate = math.ceil(options.records * self.share)
        aggregated = round(options.keys * self.share)
        if 0 < self.share < 1:  # each way has a key at least
            aggregated = min(max(aggregated, 1), options.keys - 1)
        names = [f"{options.key_prefix}-{number:05d}" for number in range(options.keys)]
        rng.shuffle(names)
        self.idle = {True: collections.deque(names[:aggregated]), False: collections.deque(names[aggregated:])}
        self.next_n = dict.fromkeys(names, 0)
        self.made = {True: 0, False: 0}
        self.retry = collections.deque()

    def batch(self, at_most):
        """The entries of the next call: failed ones first. `at_most` limits the user records of new ones."""
        batch = []
        while self.retry and len(batch) < MAX_ENTRIES:
            batch.append(self.retry.popleft())
        while len(batch) < MAX_ENTRIES and self.left and at_most > 0:
            # Whichever way is behind its share goes next; where it has no idle key the call ends, so that the share holds.
            way = self.made[True] < self.share * (self.made[True] + self.made[False] + 1)
            if not self.idle[way]:
                break
            entry = self.entry(self.idle[way].popleft(), way)
            at_most -= len(entry["users"])
            batch.append(entry)
        return batch

    def entry(self, key, aggregated):
        count = min(self.rng.randint(*AGGREGATE_RECORDS), self.to_aggregate - self.made[True]) if aggregated else 1
        users = []
        for n in range(self.next_n[key], self.next_n[key] + count):
            users.append({"key": key, "n": n, "id": f"{self.rng.getrandbits(64):016x}"})
        self.next_n[key] += count
        self.left -= count
        self.made[aggregated] += count
        payloads = [json.dumps(user, separators=(",", ":")).encode() for user in users]
        if aggregated:
            aggregator = RecordAggregator()
            for payload in payloads:
                if aggregator.add_user_record(key, payload) is not None:
                    raise GaveUp(f"an aggregate of {count} user records is too large")
            # No hash key of its own: the partition key places the aggregate, as it would place its user records.
            partition_key, _, data = aggregator.clear_and_get().get_contents()
            put = {"PartitionKey": partition_key, "Data": data}
        else:
            put = {"PartitionKey": key, "Data": payloads[0]}
        return {"key": key, "aggregated": aggregated, "users": users, "put": put}

    def acknowledged(self, entry):
        self.idle[entry["aggregated"]].append(entry["key"])


class Totals:
    """What the last line says."""

    def __init__(self):
        self.user_records = {True: 0, False: 0}
        self.aggregates = 0
        self.calls = 0
        self.failed_entries = 0
        self.failed_calls = 0
        self.uncertain_calls = 0

    def acknowledged(self):
        return self.user_records[True] + self.user_records[False]


def put(stream, batch, totals):
    """One PutRecords call, repeated until it is answered. The answer has one result for each entry."""
    while True:
        totals.calls += 1
        try:
            return stream.client.put_records(StreamName=stream.name, Records=[e["put"] for e in batch])["Records"]
        except (ClientError, ConnectionError, HTTPClientError) as error:
            if not is_passing(error):
                raise GaveUp(f"PutRecords: {error}") from error
            totals.failed_calls += 1
            if not isinstance(error, ClientError) or error.response["ResponseMetadata"]["HTTPStatusCode"] >= 500:
                totals.uncertain_calls += 1
            stream.deadline.pause(0.05, f"PutRecords: {error}")


def write_ledger(ledger, entry, result):
    for sub, user in enumerate(entry["users"]):
        line = {**user, "shard_id": result["ShardId"], "sequence_number": result["SequenceNumber"], "sub": sub}
        ledger.write(json.dumps(line, separators=(",", ":")) + "\n")


def produce(stream, source, ledger, totals, rate, resharder):
    started = time.monotonic()
    while source.left or source.retry:
        at_most = source.left
        if rate:
            at_most = int((time.monotonic() - started) * rate) + 1 - totals.acknowledged()
        batch = source.batch(at_most)
        if not batch:
            stream.deadline.pause(0.01, "the next record is not due yet")
            continue
        failed = 0
        for entry, result in zip(batch, put(stream, batch, totals), strict=True):
            if result.get("ErrorCode"):
                failed += 1
                source.retry.append(entry)
                continue
            write_ledger(ledger, entry, result)
            source.acknowledged(entry)
            totals.user_records[entry["aggregated"]] += len(entry["users"])
            totals.aggregates += entry["aggregated"]
        ledger.flush()
        if failed:
            totals.failed_entries += failed
            stream.deadline.pause(0.05, f"{failed} entries of a PutRecords call failed")
        if resharder:
            resharder.note(totals.acknowledged())
    if resharder:
        resharder.finish()


def number(kind, low, high):
    def parse(text):
        try:
            value = kind(text)
        except ValueError:
            value = None
        if value is None or not low <= value <= high:
            raise argparse.ArgumentTypeError(f"{text!r}: a number from {low} to {high} is expected")
        return value

    return parse


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--endpoint-url", required=True, help="where the local Kinesis is")
    parser.add_argument("--stream", required=True, help="the stream's name")
    parser.add_argument("--records", required=True, type=number(int, 1, 100_000_000), help="how many user records to put")
    parser.add_argument("--ledger", required=True, help="file for what was acknowledged; an old one is replaced")
    parser.add_argument("--shards", type=number(int, 1, 10_000), help="make the stream with so many shards if it is not there")
    parser.add_argument("--keys", default=900, type=number(int, 1, 100_000), help="how many partition keys (900)")
    parser.add_argument("--key-prefix", default="key", help="how keys begin; producers side by side need their own (key)")
    parser.add_argument(
        "--aggregate-share", default=0.5, type=number(float, 0, 1), help="share of user records in aggregates (0.5)"
    )
    parser.add_argument("--rate", type=number(float, 0.1, 1e9), help="at most so many user records a second (no limit)")
    parser.add_argument("--reshard", action="store_true", help="split and merge shards meanwhile")
    parser.add_argument(
        "--reshard-steps", default=len(RESHARD_CYCLE), type=number(int, 1, 1000), help="how many splits and merges (6)"
    )
    parser.add_argument("--seed", type=number(int, 0, 2**63), help="makes a run repeatable (random; the totals name it)")
    parser.add_argument("--timeout", default=600, type=number(float, 1, 86_400), help="seconds for the whole run (600)")
    options = parser.parse_args()
    if 0 < options.aggregate_share < 1 and options.keys < 2:
        parser.error("--keys 1 with an --aggregate-share between 0 and 1: a key goes one way, so two keys are needed")
    return options


def main():
    options = arguments()
    seed = options.seed if options.seed is not None else random.SystemRandom().getrandbits(31)
    deadline = Deadline(options.timeout)
    stream = Stream(options.endpoint_url, options.stream, deadline)
    started = time.monotonic()
    totals, resharder = Totals(), None
    try:
        if options.shards:
            stream.create(options.shards)
        source = Source(options, random.Random(seed))
        if options.reshard:
            resharder = Resharder(stream, options.reshard_steps, options.records, random.Random(seed + 1))
            resharder.start()
        with open(options.ledger, "w", encoding="utf-8") as ledger:
            produce(stream, source, ledger, totals, options.rate, resharder)
        failure = None
    except (GaveUp, ClientError, ConnectionError, HTTPClientError, OSError) as error:
        failure = str(error)
    summary = {
        "stream": options.stream,
        "seed": seed,
        "user_records": totals.acknowledged(),
        "plain": totals.user_records[False],
        "aggregated": totals.user_records[True],
        "aggregates": totals.aggregates,
        "calls": totals.calls,
        "failed_entries": totals.failed_entries,
        "failed_calls": totals.failed_calls,
        "uncertain_calls": totals.uncertain_calls,
        "reshard_steps": resharder.done if resharder else 0,
        "open_shards": resharder.shard_counts if resharder else [],
        "seconds": round(time.monotonic() - started, 3),
    }
    if failure:
        summary["failure"] = failure
        print(f"producer: {failure}", file=sys.stderr)
    print(json.dumps(summary), flush=True)
    return 1 if failure else 0


if __name__ == "__main__":
    sys.exit(main())
