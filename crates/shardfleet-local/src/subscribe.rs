//! A live subscription: the event stream of `SubscribeToShard`.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::Stream;
use http_body_util::StreamBody;
use hyper::body::Frame;

use crate::faults::FaultAction;
use crate::model::{ApiError, StreamRef, Touch};
use crate::ops::{SubscriptionAnswer, children};
use crate::server::Cut;
use crate::service::Service;
use crate::settings::millis;
use crate::wire::{EventView, Format, eventstream, map, write_event};

/// Most bytes of payload and keys in one event (AWS: 2 MB/s for each subscription, pushed in portions).
const EVENT_BYTES: usize = 1024 * 1024;
const EVENT_RECORDS: usize = 10_000;
/// Longest silence of a stalled or silent stream before the connection is given up. No client waits so long.
const STALL: Duration = Duration::from_hours(1);
/// Longest sleep between two looks at the model; whatever a subscription waits for also wakes it.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How long a stream that is to be cut pauses first.
const FLUSH: Duration = Duration::from_millis(20);

struct Live {
    service: Arc<Service>,
    at: SubscriptionAnswer,
    format: Format,
    fault: Option<FaultAction>,
    stage: Stage,
    events: u32,
    last_event_uptime_ms: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Opening,
    Running,
    Over,
}

enum Step {
    Send(Vec<u8>),
    SendLast(Vec<u8>),
    End,
    Wait(Duration),
}

/// The body of a `SubscribeToShard` answer. It is only driven while the client reads, so a slow client holds back the shard's
/// records in the model and not in a queue.
pub(crate) fn event_stream(
    service: Arc<Service>,
    at: SubscriptionAnswer,
    format: Format,
    fault: Option<FaultAction>,
) -> StreamBody<impl Stream<Item = Result<Frame<Bytes>, Cut>> + Send> {
    let last_event_uptime_ms = service.clock.now().uptime_ms;
    let live = Live {
        service,
        at,
        format,
        fault,
        stage: Stage::Opening,
        events: 0,
        last_event_uptime_ms,
    };
    StreamBody::new(futures::stream::unfold(live, |mut live| async move {
        let next = live.next().await?;
        Some((next.map(|bytes| Frame::data(Bytes::from(bytes))), live))
    }))
}

impl Live {
    async fn next(&mut self) -> Option<Result<Vec<u8>, Cut>> {
        match self.stage {
            Stage::Over => return None,
            Stage::Opening => {
                if self.fault == Some(FaultAction::StreamSilent) {
                    return self.stall().await;
                }
                self.stage = Stage::Running;
                let payload = self.format.write(&map([]));
                return Some(Ok(eventstream::event(
                    "initial-response",
                    self.format.content_type(),
                    &payload,
                )));
            }
            Stage::Running => {}
        }
        loop {
            // Listen before looking, so that nothing that happens in between goes unheard.
            let service = Arc::clone(&self.service);
            let changed = service.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if let Some(outcome) = self.strike() {
                return match outcome {
                    Strike::Stall => self.stall().await,
                    Strike::Cut => {
                        self.stage = Stage::Over;
                        // What was sent before the cut has to get out first: it is written once the body pauses.
                        drop(tokio::time::timeout(FLUSH, std::future::pending::<()>()).await);
                        Some(Err(Cut))
                    }
                    Strike::End => None,
                    Strike::Exception(frame) => Some(Ok(frame)),
                };
            }
            match self.step() {
                Step::Send(frame) => return Some(Ok(frame)),
                Step::SendLast(frame) => {
                    self.stage = Stage::Over;
                    return Some(Ok(frame));
                }
                Step::End => return None,
                Step::Wait(time) => {
                    // Woken or not, the next turn looks again.
                    drop(tokio::time::timeout(time, changed).await);
                }
            }
        }
    }

    async fn stall(&mut self) -> Option<Result<Vec<u8>, Cut>> {
        self.stage = Stage::Over;
        drop(tokio::time::timeout(STALL, std::future::pending::<()>()).await);
        Some(Err(Cut))
    }

    /// What a fault rule does now, if its turn has come.
    fn strike(&mut self) -> Option<Strike> {
        let (after, strike) = match self.fault.as_ref()? {
            FaultAction::StreamCut { after_events } => (*after_events, Strike::Cut),
            FaultAction::StreamStall { after_events } => (*after_events, Strike::Stall),
            FaultAction::StreamEnd { after_events } => (*after_events, Strike::End),
            FaultAction::StreamException {
                after_events,
                code,
                message,
            } => (*after_events, Strike::Exception(self.exception(code, message))),
            _ => return None,
        };
        if self.events < after {
            return None;
        }
        self.stage = Stage::Over;
        Some(strike)
    }

    fn exception(&self, code: &str, message: &str) -> Vec<u8> {
        let payload = self.format.write(&map([("message", message.into())]));
        eventstream::exception(code, self.format.content_type(), &payload)
    }

    fn step(&mut self) -> Step {
        let service = Arc::clone(&self.service);
        match service.transact(|account, now| self.look(account, now)) {
            Ok(step) => step,
            Err(error) => Step::SendLast(self.exception(&error.code, &error.message)),
        }
    }

    fn look(
        &mut self,
        account: &mut crate::model::Account,
        now: crate::model::Now,
    ) -> Result<Step, ApiError> {
        let at = &self.at;
        let (stream, settings) = account.stream_and_settings(StreamRef::by_name(&at.stream), now)?;
        if stream.meta.id != at.stream_id {
            return Err(ApiError::no_stream(&at.stream));
        }
        stream.require_usable()?;
        match stream.touch_subscription(&at.consumer_arn, at.shard, at.id, now, settings) {
            Touch::Live => {}
            Touch::Ended => return Ok(Step::End),
            Touch::SlowUntil(ms) => {
                let wait = Duration::from_millis(ms.saturating_sub(now.epoch_ms));
                return Ok(Step::Wait(wait.clamp(Duration::from_millis(1), LOOK_EVERY)));
            }
            Touch::TakenOver => {
                return Err(ApiError::in_use(format!(
                    "Another active subscription exists for this consumer: {}",
                    at.consumer_arn
                )));
            }
            Touch::Gone => {
                return Err(ApiError::not_found(format!(
                    "Consumer {} was deregistered.",
                    at.consumer_arn
                )));
            }
        }
        let shard = stream.shard_to_read(&crate::model::shard_name(at.shard))?;
        let page = shard.read(at.index, EVENT_RECORDS, EVENT_BYTES, now);
        let idle_ms = now.uptime_ms.saturating_sub(self.last_event_uptime_ms);
        let idle_time_ms = millis(settings.subscription_idle_time);
        if page.records.is_empty() && !page.ended && idle_ms < idle_time_ms {
            let wait = Duration::from_millis((idle_time_ms - idle_ms).max(1));
            return Ok(Step::Wait(wait.min(LOOK_EVERY)));
        }
        let continuation = (!page.ended).then(|| match page.records.last() {
            Some(last) => String::from_utf8_lossy(&last.sequence).into_owned(),
            None => shard.meta.sequence_before(page.next, now),
        });
        let children = page.ended.then(|| children(stream, at.shard));
        let event = EventView {
            records: &page.records,
            encrypted: stream.meta.kms_key.is_some(),
            continuation: continuation.as_deref(),
            millis_behind: page.millis_behind,
            child_shards: children.as_ref(),
        };
        let payload = write_event(self.format, &event);
        let frame = eventstream::event("SubscribeToShardEvent", self.format.content_type(), &payload);
        stream.note_subscription_bytes(&at.consumer_arn, at.shard, page.bytes, now, settings);
        self.at.index = page.next;
        self.events += 1;
        self.last_event_uptime_ms = now.uptime_ms;
        Ok(if page.ended {
            Step::SendLast(frame)
        } else {
            Step::Send(frame)
        })
    }
}

enum Strike {
    Cut,
    Stall,
    End,
    Exception(Vec<u8>),
}
