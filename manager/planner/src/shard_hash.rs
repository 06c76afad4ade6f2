//! Computes the hash bucket of a namespace and its objects.

pub const BUCKETS: u32 = 32;

/// The hash bucket of a namespace, the value of label `ctrlmesh.kusionstack.io/shard-hash`.
///
/// The function is KusionStack's (`pkg/utils/rand/hash.go`: `h*33 + c` modulo 32, which is the sum of the code points), because
/// objects in clusters carry its results. It spreads numbered names badly.
#[must_use]
pub fn shard_hash(namespace: &str) -> u32 {
    namespace
        .chars()
        .fold(0, |hash, c| (hash + u32::from(c) % BUCKETS) % BUCKETS)
}

/// Whether a value of that label is a hash bucket, as the manager writes it.
#[must_use]
pub fn is_bucket(value: &str) -> bool {
    (0..BUCKETS).any(|bucket| bucket.to_string() == value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_those_of_kusionstack() {
        let known = [
            ("", 0),
            ("default", 5),
            ("kube-system", 25),
            ("test-0", 29),
            ("test-1", 30),
            ("ns-12", 17),
            ("ns-21", 17),
        ];
        for (namespace, bucket) in known {
            assert_eq!(shard_hash(namespace), bucket, "{namespace}");
        }
    }
}
