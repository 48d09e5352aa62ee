//! The names that travel through the project, each a type of its own so that two of them cannot be swapped.
//!
//! All are cheap to clone (a reference count). Equality and order are those of the text.

use std::fmt;
use std::sync::Arc;

macro_rules! text_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Arc<str>);

        impl $name {
            /// Takes the text as it is; whether a service accepts it is the service's answer to give.
            pub fn new(text: impl AsRef<str>) -> Self {
                Self(Arc::from(text.as_ref()))
            }

            /// The text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&*self.0, f)
            }
        }

        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }

        impl From<&str> for $name {
            fn from(text: &str) -> Self {
                Self::new(text)
            }
        }

        impl From<String> for $name {
            fn from(text: String) -> Self {
                Self(Arc::from(text))
            }
        }

        impl From<&$name> for $name {
            fn from(id: &$name) -> Self {
                id.clone()
            }
        }
    };
}

text_id! {
    /// The name of a KCL application. It names the lease table too, unless another table name is configured.
    ApplicationName
}
text_id! {
    /// The name of a Kinesis data stream.
    StreamName
}
text_id! {
    /// The id of a shard, such as `shardId-000000000003`.
    ShardId
}
text_id! {
    /// The key of a lease row. For an application that reads one stream it is the shard id.
    LeaseKey
}
text_id! {
    /// The identifier of a worker: one running process. It is what a lease row holds as `leaseOwner`.
    WorkerId
}

impl From<&ShardId> for LeaseKey {
    /// The key of a shard's lease in an application that reads one stream.
    fn from(shard: &ShardId) -> Self {
        Self(shard.0.clone())
    }
}

impl ShardId {
    /// The number at the end of the id (`shardId-000000000012` is 12), which status readers know as the task id.
    /// `None` when the id does not end in digits or the number exceeds `u64`.
    pub fn number(&self) -> Option<u64> {
        let digits = self.as_str().rsplit(|c: char| !c.is_ascii_digit()).next()?;
        digits.parse().ok()
    }
}

impl LeaseKey {
    /// The shard this key stands for in an application that reads one stream.
    pub fn shard_id(&self) -> ShardId {
        ShardId(self.0.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shard_number_is_the_number_at_the_end() {
        assert_eq!(ShardId::new("shardId-000000000012").number(), Some(12));
        assert_eq!(ShardId::new("0").number(), Some(0));
        assert_eq!(ShardId::new("shardId-").number(), None);
        assert_eq!(ShardId::new("shardId-99999999999999999999999").number(), None);
    }
}
