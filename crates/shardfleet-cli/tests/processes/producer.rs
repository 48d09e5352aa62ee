//! A producer that is not ours: boto3 and `aws-kinesis-agg`, in a process of its own, with reshards meanwhile.
