//! Which errors may pass (Kafka: `org.apache.kafka.common.errors.RetriableException`).

use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use shardfleet_core::status::Outcome;

/// The codes of brokers that Kafka 4.3's own producer takes for retriable.
const RETRIABLE: [i32; 32] = [
    2, 3, 5, 6, 7, 9, 13, 14, 15, 16, 19, 20, 41, 51, 56, 70, 71, 72, 74, 75, 78, 80, 83, 84, 88, 89, 100,
    103, 106, 122, 123, 133,
];

/// How a write came out that failed so.
pub(super) fn of(error: &KafkaError) -> Outcome {
    let text = error.to_string();
    match error.rdkafka_error_code() {
        Some(code) if is_retriable(code) => Outcome::Retriable(text),
        _ => Outcome::Final(text),
    }
}

pub(super) fn is_retriable(code: RDKafkaErrorCode) -> bool {
    use RDKafkaErrorCode as Code;
    RETRIABLE.contains(&(code as i32))
        || matches!(
            code,
            Code::MessageTimedOut
                | Code::BrokerTransportFailure
                | Code::Resolve
                | Code::AllBrokersDown
                | Code::OperationTimedOut
                | Code::QueueFull
                | Code::ISRInsufficient
                | Code::WaitingForCoordinator
                | Code::TimedOutQueue
                | Code::WaitCache
                | Code::Interrupted
                | Code::Retry
                | Code::UnknownTopic
                | Code::UnknownPartition
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_pass_is_told_from_what_never_will() {
        use RDKafkaErrorCode as Code;
        for code in [
            Code::NotEnoughReplicas,
            Code::NotEnoughReplicasAfterAppend,
            Code::LeaderNotAvailable,
            Code::NotLeaderForPartition,
            Code::UnknownTopicOrPartition,
            Code::RequestTimedOut,
            Code::NetworkException,
            Code::MessageTimedOut,
            Code::BrokerTransportFailure,
            Code::QueueFull,
            Code::KafkaStorageError,
        ] {
            assert!(is_retriable(code), "{code:?}");
        }
        for code in [
            Code::MessageSizeTooLarge,
            Code::TopicAuthorizationFailed,
            Code::ClusterAuthorizationFailed,
            Code::InvalidRecord,
            Code::InvalidRequiredAcks,
            Code::Authentication,
            Code::SSL,
            Code::Fatal,
            Code::Fail,
            Code::Unknown,
        ] {
            assert!(!is_retriable(code), "{code:?}");
        }
        let failed = of(&KafkaError::MessageProduction(Code::NotEnoughReplicas));
        assert!(matches!(failed, Outcome::Retriable(_)), "{failed:?}");
    }
}
