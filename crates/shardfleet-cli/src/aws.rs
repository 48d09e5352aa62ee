//! From arguments to AWS settings.

use shardfleet::AwsSettings;

use crate::args::AwsArgs;
use crate::exit::Failure;

/// Reads the environment for what the arguments do not say, as the AWS CLI does.
pub(crate) async fn settings(args: &AwsArgs) -> Result<AwsSettings, Failure> {
    let mut builder = AwsSettings::builder();
    if let Some(url) = &args.endpoint_url {
        if !(url.starts_with("http://") || url.starts_with("https://")) {
            return Err(Failure::usage(format!(
                "the endpoint URL is {url:?}; one such as http://127.0.0.1:4567 is expected (--endpoint-url, or aws.endpoint_url of the config file)"
            )));
        }
        builder = builder.endpoint_url(url);
    }
    if let Some(region) = &args.region {
        builder = builder.region(region);
    }
    if let Some(profile) = &args.profile {
        builder = builder.profile(profile);
    }
    let settings = builder.load().await;
    if !settings.has_region() {
        return Err(Failure::usage(
            "no AWS region is known; set AWS_REGION, say --region, or put one into the profile of ~/.aws/config",
        ));
    }
    Ok(settings)
}
