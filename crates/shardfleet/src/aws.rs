//! How to reach AWS, or anything that speaks its protocols: credentials, region, endpoints, time limits.
//!
//! The usual chain applies: environment, shared config and credentials files, web identity, ECS and EC2 metadata. Endpoints can
//! be given in code, or by `AWS_ENDPOINT_URL`, `AWS_ENDPOINT_URL_KINESIS` and `AWS_ENDPOINT_URL_DYNAMODB`.

use std::time::Duration;

use aws_config::{BehaviorVersion, Region, SdkConfig};
use aws_sdk_kinesis::config::retry::RetryConfig;
use aws_sdk_kinesis::config::timeout::TimeoutConfig;
use aws_smithy_http_client::tls;

/// Where the AWS clients connect to and as whom.
#[derive(Clone, Debug)]
pub struct AwsSettings {
    config: SdkConfig,
}

/// Builds [`AwsSettings`]. Everything that is not said is taken from the environment, as the AWS CLI does.
#[derive(Clone, Debug, Default)]
pub struct AwsSettingsBuilder {
    endpoint_url: Option<String>,
    region: Option<String>,
    profile: Option<String>,
    credentials: Option<(String, String)>,
}

impl AwsSettings {
    /// The settings of the environment.
    pub async fn from_env() -> Self {
        Self::builder().load().await
    }

    /// Settings some of which are given in code.
    pub fn builder() -> AwsSettingsBuilder {
        AwsSettingsBuilder::default()
    }

    /// Whether a region is known. Without one no call can be made.
    pub fn has_region(&self) -> bool {
        self.config.region().is_some()
    }

    pub(crate) fn sdk_config(&self) -> &SdkConfig {
        &self.config
    }
}

impl AwsSettingsBuilder {
    /// One endpoint for every service, such as `http://127.0.0.1:4567`.
    #[must_use]
    pub fn endpoint_url(mut self, url: impl Into<String>) -> Self {
        self.endpoint_url = Some(url.into());
        self
    }

    /// The region, ahead of `AWS_REGION` and the config files.
    #[must_use]
    pub fn region(mut self, region: impl Into<String>) -> Self {
        self.region = Some(region.into());
        self
    }

    /// The profile of the shared config files, ahead of `AWS_PROFILE`.
    #[must_use]
    pub fn profile(mut self, profile: impl Into<String>) -> Self {
        self.profile = Some(profile.into());
        self
    }

    /// Fixed credentials, as local services take any.
    #[must_use]
    pub fn credentials(
        mut self,
        access_key_id: impl Into<String>,
        secret_access_key: impl Into<String>,
    ) -> Self {
        self.credentials = Some((access_key_id.into(), secret_access_key.into()));
        self
    }

    /// Reads the environment and the config files for what was not said. No call to AWS is made yet.
    pub async fn load(self) -> AwsSettings {
        let http = aws_smithy_http_client::Builder::new()
            .tls_provider(tls::Provider::Rustls(tls::rustls_provider::CryptoMode::Ring))
            .build_https();
        // The callers pace and retry by themselves; retries below them would multiply with theirs.
        let mut loader = aws_config::defaults(BehaviorVersion::latest())
            .http_client(http)
            .retry_config(RetryConfig::disabled())
            .timeout_config(
                TimeoutConfig::builder()
                    .connect_timeout(Duration::from_secs(3))
                    .operation_attempt_timeout(Duration::from_secs(30))
                    .operation_timeout(Duration::from_secs(30))
                    .build(),
            );
        if let Some(url) = self.endpoint_url {
            loader = loader.endpoint_url(url);
        }
        if let Some(region) = self.region {
            loader = loader.region(Region::new(region));
        }
        if let Some(profile) = self.profile {
            loader = loader.profile_name(profile);
        }
        if let Some((id, secret)) = self.credentials {
            let credentials =
                aws_sdk_kinesis::config::Credentials::new(id, secret, None, None, "given in code");
            loader = loader.credentials_provider(credentials);
        }
        AwsSettings {
            // The SDK's future is tens of kilobytes, which callers need not carry.
            config: Box::pin(loader.load()).await,
        }
    }
}

/// The text of an error and of everything below it, without saying the same twice.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut below = error.source();
    while let Some(cause) = below {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        below = cause.source();
    }
    text
}
