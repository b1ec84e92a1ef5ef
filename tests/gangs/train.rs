//! The Job that tests lead through its life.

use serde_json::{Value, json};

/// A Job of two pods with one GPU each, which run for two seconds.
pub fn job(namespace: &str) -> Value {
    let gpu = json!({"nvidia.com/gpu": "1"});
    json!({
        "apiVersion": "batch/v1", "kind": "Job",
        "metadata": {"name": "train", "namespace": namespace, "labels": {"kueue.x-k8s.io/queue-name": "queue"}},
        "spec": {
            "parallelism": 2, "completions": 2, "suspend": true,
            "template": {
                "metadata": {"annotations": {"e2e.setu/run-for": "2s"}},
                "spec": {
                    "restartPolicy": "Never",
                    "containers": [{"name": "main", "image": "none", "resources": {"requests": gpu, "limits": gpu}}],
                },
            },
        },
    })
}
