//! Builds the Workload that Kueue would create for a Job, JobSet or Pod.

use crate::api::Workload;
use crate::names;
use serde_json::{Value, json};

/// Reads a Workload, or builds the one that Kueue would create.
pub fn workload(manifest: Value) -> Result<Workload, String> {
    let kind = manifest.get("kind").and_then(Value::as_str).unwrap_or_default().to_owned();
    let read =
        |value: Value| serde_json::from_value(value).map_err(|e| format!("{kind} cannot be read: {e}"));
    let pod_sets = match kind.as_str() {
        "Workload" => return read(manifest).and_then(checked),
        "Job" => vec![of_job("main", manifest.get("spec"), 1)?],
        "JobSet" => manifest
            .pointer("/spec/replicatedJobs")
            .and_then(Value::as_array)
            .ok_or("JobSet has no spec.replicatedJobs")?
            .iter()
            .map(|job| {
                let name = job.get("name").and_then(Value::as_str).unwrap_or_default();
                let replicas = number(job, "replicas", &format!("replicated Job {name}"))?.unwrap_or(1);
                of_job(name, job.pointer("/template/spec"), replicas)
            })
            .collect::<Result<_, _>>()?,
        _ => vec![json!({"name": "main", "count": 1, "template": {
            "metadata": manifest.get("metadata"), "spec": manifest.get("spec"),
        }})],
    };
    let metadata = |key: &str| manifest.pointer(&format!("/metadata/{key}")).cloned();
    let label = |key: &str| manifest.pointer("/metadata/labels").and_then(|labels| labels.get(key)).cloned();
    let queue = label(names::QUEUE);
    let seconds = label(names::MAX_EXECUTION).and_then(|text| text.as_str()?.parse::<u32>().ok());
    let made = read(json!({
        "metadata": {
            "name": metadata("name").unwrap_or_else(|| json!("unnamed")),
            "namespace": metadata("namespace").unwrap_or_else(|| json!("default")),
            "annotations": overrides(&manifest),
        },
        "spec": {
            "podSets": pod_sets, "queueName": queue.unwrap_or_else(|| json!("")),
            "maximumExecutionTimeSeconds": seconds,
        },
    }))?;
    checked(made)
}

/// Sets the default namespace, and refuses negative pod counts.
fn checked(mut workload: Workload) -> Result<Workload, String> {
    workload.metadata.namespace.get_or_insert_with(|| "default".to_owned());
    match workload.spec.pod_sets.iter().find(|set| set.count < 0) {
        None => Ok(workload),
        Some(set) => Err(format!("pod set {} has a count of {}; write 0 or more", set.name, set.count)),
    }
}

/// A non-negative integer; `None` if the field is absent.
fn number(of: &Value, field: &str, whose: &str) -> Result<Option<i64>, String> {
    match of.get(field) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => match value.as_i64() {
            Some(number) if number >= 0 => Ok(Some(number)),
            _ => Err(format!("{whose} has {field}: {value}; write a whole number, 0 or more")),
        },
    }
}

/// The annotations that Kueue copies from a Job to its Workload and that Setu reads.
fn overrides(manifest: &Value) -> Value {
    let all = manifest.pointer("/metadata/annotations").and_then(Value::as_object);
    let ours = all.into_iter().flatten().filter(|(key, _)| key.starts_with(names::JOB_OVERRIDE_PREFIX));
    Value::Object(ours.map(|(key, value)| (key.clone(), value.clone())).collect())
}

/// The pod set of `replicas` Jobs. Its count is the number of pods that run at a time.
fn of_job(name: &str, spec: Option<&Value>, replicas: i64) -> Result<Value, String> {
    let spec = spec.ok_or_else(|| format!("the Job of pod set {name} has no spec"))?;
    let template =
        spec.get("template").ok_or_else(|| format!("the Job of pod set {name} has no template"))?;
    let number = |field| number(spec, field, &format!("the Job of pod set {name}"));
    let parallelism = number("parallelism")?.unwrap_or(1);
    let at_a_time = number("completions")?.map_or(parallelism, |completions| parallelism.min(completions));
    Ok(json!({"name": name, "count": at_a_time.saturating_mul(replicas), "template": template}))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(manifest: Value) -> Vec<(String, i32)> {
        workload(manifest).unwrap().spec.pod_sets.into_iter().map(|p| (p.name, p.count)).collect()
    }

    #[test]
    fn each_kind_gets_the_pod_sets_that_kueue_would_create() {
        let template = json!({"spec": {"containers": []}});
        let job = |parallelism: i64, completions: Option<i64>| {
            json!({"kind": "Job", "spec": {
                "parallelism": parallelism, "completions": completions, "template": template,
            }})
        };
        assert_eq!(counts(job(4, Some(9))), [("main".to_owned(), 4)]);
        assert_eq!(counts(job(4, Some(2))), [("main".to_owned(), 2)]);
        assert_eq!(counts(job(4, None)), [("main".to_owned(), 4)]);
        let set = json!({"kind": "JobSet", "spec": {"replicatedJobs": [
            {"name": "lead", "template": job(1, None)},
            {"name": "work", "replicas": 3, "template": job(2, None)},
        ]}});
        assert_eq!(counts(set), [("lead".to_owned(), 1), ("work".into(), 6)]);
        let pod = json!({"kind": "Pod", "metadata": {"name": "p", "labels": {(names::QUEUE): "lq"}}, "spec": {"containers": []}});
        assert_eq!(workload(pod.clone()).unwrap().spec.queue_name, "lq");
        assert_eq!(counts(pod), [("main".to_owned(), 1)]);
    }

    #[test]
    fn the_maximum_execution_time_comes_from_the_job_label() {
        let job = |labels: Value| {
            let job = json!({"kind": "Job", "metadata": {"labels": labels}, "spec": {"template": {"spec": {"containers": []}}}});
            workload(job).unwrap().spec.maximum_execution_time_seconds
        };
        assert_eq!(job(json!({(names::MAX_EXECUTION): "3600"})), Some(3_600));
        assert_eq!(job(json!({})), None);
    }

    #[test]
    fn invalid_pod_counts_are_named_in_the_error() {
        let refused = |manifest: Value| workload(manifest).unwrap_err();
        let template = json!({"spec": {"containers": []}});
        let job = |parallelism: Value| json!({"kind": "Job", "spec": {"parallelism": parallelism, "template": template}});
        let words = "the Job of pod set main has parallelism: -2; write a whole number, 0 or more";
        assert_eq!(refused(job(json!(-2))), words);
        assert!(refused(job(json!("4"))).contains("parallelism: \"4\""));
        let set = json!({"kind": "JobSet", "spec": {"replicatedJobs": [
            {"name": "work", "replicas": -1, "template": job(json!(1))},
        ]}});
        assert!(refused(set).starts_with("replicated Job work has replicas: -1"));
        let of_kueue = json!({"kind": "Workload", "metadata": {"name": "w"}, "spec": {"podSets": [
            {"name": "main", "count": -1, "template": template},
        ]}});
        assert_eq!(refused(of_kueue), "pod set main has a count of -1; write 0 or more");
    }

    #[test]
    fn missing_fields_are_named_in_the_error() {
        assert_eq!(
            workload(json!({"kind": "Job", "spec": {}})).unwrap_err(),
            "the Job of pod set main has no template"
        );
        assert!(workload(json!({"kind": "JobSet"})).unwrap_err().contains("spec.replicatedJobs"));
        assert!(
            workload(json!({"kind": "Workload", "spec": 1}))
                .unwrap_err()
                .starts_with("Workload cannot be read")
        );
    }
}
