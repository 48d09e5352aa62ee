//! What an answer of DynamoDB, or the lack of one, means for the caller.

use aws_sdk_dynamodb::config::http::HttpResponse;
use aws_sdk_dynamodb::error::{ProvideErrorMetadata, SdkError};

use crate::store::{StoreError, StoreErrorKind};

/// Turns a failed call into a store error. `doing` says what the call was for.
pub(super) fn store_error<E>(doing: String, error: SdkError<E, HttpResponse>) -> StoreError
where
    E: std::error::Error + ProvideErrorMetadata + Send + Sync + 'static,
{
    let status = error.raw_response().map(|response| response.status().as_u16());
    let (verdict, reason) = match &error {
        SdkError::ServiceError(context) => {
            let code = context.err().code().unwrap_or("an error without a code");
            let message = context.err().message().unwrap_or("no message");
            let verdict = judge(code, status.unwrap_or(500));
            (
                verdict,
                format!("DynamoDB answered {code}: {message}{}", verdict.hint()),
            )
        }
        SdkError::ConstructionFailure(_) | SdkError::DispatchFailure(_) if names_credentials(&error) => (
            Verdict::Unauthorized,
            format!("no usable AWS credentials{}", Verdict::Unauthorized.hint()),
        ),
        SdkError::ConstructionFailure(_) => (Verdict::Invalid, "the request could not be built".to_owned()),
        SdkError::TimeoutError(_) => (Verdict::Unknown, "no answer from DynamoDB in time".to_owned()),
        SdkError::DispatchFailure(_) => (
            Verdict::Unknown,
            "the DynamoDB endpoint could not be reached".to_owned(),
        ),
        _ => (Verdict::Unknown, "DynamoDB's answer could not be read".to_owned()),
    };
    let mut mapped = StoreError::new(verdict.kind(), doing, reason).with_source(error);
    if verdict != Verdict::Unknown {
        mapped = mapped.without_side_effects();
    }
    mapped
}

/// What an error code means. All but [`Verdict::Unknown`] are refusals: the write did not happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Throttled,
    Unauthorized,
    NotFound,
    Invalid,
    Unknown,
}

impl Verdict {
    fn kind(self) -> StoreErrorKind {
        match self {
            Self::Throttled => StoreErrorKind::Throttled,
            Self::Unauthorized => StoreErrorKind::Unauthorized,
            Self::NotFound => StoreErrorKind::NotFound,
            Self::Invalid => StoreErrorKind::Invalid,
            Self::Unknown => StoreErrorKind::Unavailable,
        }
    }

    fn hint(self) -> &'static str {
        match self {
            Self::Unauthorized => {
                "; check the credentials, their expiry and their rights on this table and its index"
            }
            Self::Throttled | Self::NotFound | Self::Invalid | Self::Unknown => "",
        }
    }
}

// AWS: DynamoDB "Error handling" and the common errors of all services.
fn judge(code: &str, status: u16) -> Verdict {
    // Emulators and old endpoints prefix the code with its namespace.
    let code = code.rsplit(['#', '.']).next().unwrap_or(code);
    match code {
        "ProvisionedThroughputExceededException"
        | "ThrottlingException"
        | "Throttling"
        | "ThrottledException"
        | "RequestThrottled"
        | "RequestLimitExceeded"
        | "LimitExceededException"
        | "TooManyRequestsException"
        | "TransactionConflictException"
        | "ReplicatedWriteConflictException"
        // A new table's backups are not to be had at once.
        | "ContinuousBackupsUnavailableException"
        | "ResourceInUseException" => Verdict::Throttled,
        "AccessDeniedException"
        | "AccessDenied"
        | "UnrecognizedClientException"
        | "InvalidSignatureException"
        | "SignatureDoesNotMatch"
        | "IncompleteSignatureException"
        | "IncompleteSignature"
        | "MissingAuthenticationTokenException"
        | "MissingAuthenticationToken"
        | "ExpiredTokenException"
        | "ExpiredToken"
        | "InvalidClientTokenId"
        | "InvalidAccessKeyId"
        | "OptInRequired"
        | "NotAuthorized" => Verdict::Unauthorized,
        "ResourceNotFoundException" => Verdict::NotFound,
        // A request that never came to be executed, whatever its status.
        _ if status == 429 => Verdict::Throttled,
        _ if status == 401 || status == 403 => Verdict::Unauthorized,
        _ if (400..500).contains(&status) && status != 408 => Verdict::Invalid,
        _ => Verdict::Unknown,
    }
}

/// The SDK has no type for "there are no credentials"; it says so somewhere along the chain of causes.
fn names_credentials(error: &dyn std::error::Error) -> bool {
    let mut cause = Some(error);
    while let Some(error) = cause {
        let text = error.to_string();
        if text.contains("credential") || text.contains("identity") {
            return true;
        }
        cause = error.source();
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_and_statuses_say_what_to_do() {
        for (code, status, expected) in [
            ("ProvisionedThroughputExceededException", 400, Verdict::Throttled),
            (
                "com.amazonaws.dynamodb.v20120810#ThrottlingException",
                400,
                Verdict::Throttled,
            ),
            ("Whatever", 429, Verdict::Throttled),
            ("AccessDeniedException", 400, Verdict::Unauthorized),
            ("ExpiredTokenException", 400, Verdict::Unauthorized),
            ("Whatever", 403, Verdict::Unauthorized),
            ("ResourceNotFoundException", 400, Verdict::NotFound),
            ("ValidationException", 400, Verdict::Invalid),
            ("InternalServerError", 500, Verdict::Unknown),
            ("ServiceUnavailable", 503, Verdict::Unknown),
        ] {
            assert_eq!(judge(code, status), expected, "{code} {status}");
        }
    }
}
