//! Pod sets of a `SparkApplication`, whose driver and executors are fields of its own and no pod templates.
//!
//! Rule: they request what Kueue counts, which is less than Spark asks for: not its memory overhead, and no CPU but `coreRequest`.

use super::indirect::list;
use super::pod_sets::{number, refuse, text};
use crate::api::quantity::Amount;
use crate::cli::frameworks::Framework;
use serde_json::{Map, Value, json};

const DRIVER: &str = "driver";
const EXECUTOR: &str = "executor";
/// The memory that the operator gives a role that names none.
const MEMORY: &str = "1Gi";
/// Java's units of memory, with those of Kubernetes.
const UNITS: [(&str, &str); 5] = [("k", "Ki"), ("m", "Mi"), ("g", "Gi"), ("t", "Ti"), ("p", "Pi")];
/// How the names of volumes begin that Spark itself mounts.
const SCRATCH: &str = "spark-local-dir-";
/// The fields that a role has in common with the spec of a pod.
const COPIED: [&str; 4] = ["initContainers", "nodeSelector", "affinity", "tolerations"];

/// The pod sets of a `SparkApplication`: the driver and the executors.
pub fn of_application(framework: &Framework, app: &Value) -> Result<Vec<Value>, String> {
    refuse(framework, app)?;
    let mode = text(app, "/spec/mode");
    if !mode.is_empty() && mode != "cluster" {
        return Err(format!("the SparkApplication has spec.mode: {mode}; Kueue takes only cluster"));
    }
    [DRIVER, EXECUTOR].into_iter().map(|role| pod_set(app, role)).collect()
}

/// The pod set of a role.
fn pod_set(app: &Value, role: &str) -> Result<Value, String> {
    let whose = format!("the {role} of the SparkApplication");
    let fields = app
        .pointer(&format!("/spec/{role}"))
        .ok_or_else(|| format!("the SparkApplication has no spec.{role}"))?;
    let count = match number(fields, "instances", &whose)? {
        _ if role == DRIVER => 1,
        Some(count) => count,
        // Kueue does not read the configuration of Spark, and so counts none.
        None => i64::from(!configured(app, "spark.executor.instances")),
    };
    let main = json!({"name": format!("spark-kubernetes-{role}"), "resources": resources(app, fields, role, &whose)?});
    let containers: Vec<&Value> = [&main].into_iter().chain(list(fields, "/sidecars")).collect();
    let mut spec = Map::from_iter([("containers".to_owned(), json!(containers))]);
    let copied = COPIED.iter().filter_map(|name| Some((name, fields.get(*name)?)));
    spec.extend(
        copied.filter(|(_, value)| !value.is_null()).map(|(name, v)| ((*name).to_owned(), v.clone())),
    );
    spec.insert("volumes".to_owned(), json!(volumes(app, fields)));
    let metadata = json!({"labels": merged(fields, "labels"), "annotations": merged(fields, "annotations")});
    Ok(json!({"name": role, "count": count, "template": {"metadata": metadata, "spec": spec}}))
}

/// Requests and limits of the container of a role.
fn resources(app: &Value, fields: &Value, role: &str, whose: &str) -> Result<Value, String> {
    let has_default = !configured(app, &format!("spark.{role}.memory"));
    let memory = amount(fields, "memory", whose)?.or_else(|| has_default.then(|| MEMORY.to_owned()));
    let both = |cpu: Option<String>, memory: Option<String>| -> Map<String, Value> {
        let given = [("cpu", cpu), ("memory", memory)].into_iter();
        given.filter_map(|(name, amount)| Some((name.to_owned(), json!(amount?)))).collect()
    };
    let requests = both(amount(fields, "coreRequest", whose)?, memory);
    let mut limits = both(amount(fields, "coreLimit", whose)?, amount(fields, "memoryLimit", whose)?);
    let gpu = fields.get("gpu").unwrap_or(&Value::Null);
    let (name, quantity) = (text(gpu, "/name"), number(gpu, "quantity", whose)?.unwrap_or(0));
    if !name.is_empty() && quantity > 0 {
        limits.insert(name.to_owned(), json!(quantity.to_string()));
    }
    Ok(json!({"requests": requests, "limits": limits}))
}

/// The amount that a field of a role has, as Kueue reads it.
fn amount(fields: &Value, field: &str, whose: &str) -> Result<Option<String>, String> {
    let Some(value) = fields.get(field).filter(|value| !value.is_null()) else { return Ok(None) };
    let is_memory = field.starts_with("memory");
    let read = value.as_str().and_then(|text| if is_memory { of_java(text) } else { Some(text.to_owned()) });
    let read = read.filter(|text| Amount::parse(text).is_some());
    let example = if is_memory { "\"16g\", with a small letter" } else { "\"4\", in quotes" };
    read.map(Some).ok_or_else(|| {
        format!("{whose} has {field}: {value}, which Kueue cannot read; write it as {example}")
    })
}

/// Java's amount of memory as Kubernetes writes it. `None` if its unit has a capital letter, which Kueue cannot read.
fn of_java(memory: &str) -> Option<String> {
    let number = memory.strip_suffix('b').unwrap_or(memory);
    match UNITS.iter().find(|(java, _)| number.to_lowercase().ends_with(java)) {
        Some((java, unit)) => number.strip_suffix(java).map(|number| format!("{number}{unit}")),
        None => Some(memory.to_owned()),
    }
}

/// Whether the configuration of Spark has a key, so that the operator sets no default for it.
fn configured(app: &Value, key: &str) -> bool {
    app.pointer("/spec/sparkConf").is_some_and(|conf| conf.get(key).is_some())
}

/// The labels or annotations of a role's template, with those of the role.
fn merged(fields: &Value, field: &str) -> Value {
    let of = |at: &str| fields.pointer(at).and_then(Value::as_object).cloned().unwrap_or_default();
    let mut all = of(&format!("/template/metadata/{field}"));
    all.extend(of(&format!("/{field}")));
    Value::Object(all)
}

/// The volumes of the application that a role mounts.
fn volumes<'v>(app: &'v Value, fields: &Value) -> Vec<&'v Value> {
    let mounted = |name: &str| list(fields, "/volumeMounts").iter().any(|mount| text(mount, "/name") == name);
    let all = list(app, "/spec/volumes").iter().map(|volume| (text(volume, "/name"), volume));
    all.filter(|(name, _)| !name.starts_with(SCRATCH) && mounted(name)).map(|(_, volume)| volume).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::plan::manifest::workload;

    fn made(spec: &Value) -> Result<Value, String> {
        let app =
            json!({"apiVersion": "sparkoperator.k8s.io/v1beta2", "kind": "SparkApplication", "spec": spec});
        workload(app, &[]).map(|made| json!(made.spec.pod_sets))
    }

    #[test]
    fn the_driver_and_the_executors_request_what_kueue_counts() {
        let sets = made(&json!({
            "driver": {"coreRequest": "1", "memory": "4g", "memoryOverhead": "1g", "labels": {"a": "b"}},
            "executor": {
                "instances": 3, "cores": 4, "coreLimit": "5", "memory": "16384mb", "memoryLimit": "20g",
                "gpu": {"name": "nvidia.com/gpu", "quantity": 2}, "sidecars": [{"name": "logs"}],
                "nodeSelector": {"zone": "a"}, "template": {"metadata": {"labels": {"c": "d"}}, "spec": {"nodeName": "n"}},
            },
        }));
        let sets = sets.unwrap();
        let asked = |set: usize| sets[set]["template"]["spec"]["containers"][0].clone();
        assert_eq!(sets[0]["count"], 1);
        assert_eq!(asked(0)["name"], "spark-kubernetes-driver");
        assert_eq!(asked(0)["resources"]["requests"], json!({"cpu": "1", "memory": "4Gi"}));
        assert_eq!(sets[0]["template"]["metadata"]["labels"], json!({"a": "b"}));
        assert_eq!((&sets[1]["name"], &sets[1]["count"]), (&json!("executor"), &json!(3)));
        // Its cores alone make no request that Kueue counts.
        assert_eq!(asked(1)["resources"]["requests"], json!({"memory": "16384Mi"}));
        let limits = json!({"cpu": "5", "memory": "20Gi", "nvidia.com/gpu": "2"});
        assert_eq!(asked(1)["resources"]["limits"], limits);
        assert_eq!(sets[1]["template"]["spec"]["containers"][1]["name"], "logs");
        assert_eq!(sets[1]["template"]["spec"]["nodeSelector"], json!({"zone": "a"}));
        assert_eq!(sets[1]["template"]["metadata"]["labels"], json!({"c": "d"}));
    }

    #[test]
    fn executors_default_to_one_with_one_gibibyte() {
        let count_and_memory = |conf: Value| {
            let sets = made(&json!({"sparkConf": conf, "driver": {}, "executor": {}})).unwrap();
            let asked = &sets[1]["template"]["spec"]["containers"][0]["resources"]["requests"];
            (sets[1]["count"].clone(), asked["memory"].clone())
        };
        assert_eq!(count_and_memory(Value::Null), (json!(1), json!("1Gi")));
        let conf = json!({"spark.executor.instances": "4", "spark.executor.memory": "8g"});
        assert_eq!(count_and_memory(conf), (json!(0), Value::Null));
    }

    #[test]
    fn a_role_has_the_volumes_that_it_mounts() {
        let volumes =
            ["data", "spark-local-dir-1", "other"].map(|name| json!({"name": name, "emptyDir": {}}));
        let mounts = ["data", "spark-local-dir-1"].map(|name| json!({"name": name, "mountPath": "/"}));
        let sets =
            made(&json!({"volumes": volumes, "driver": {}, "executor": {"volumeMounts": mounts}})).unwrap();
        let names = |set: usize| {
            let all = sets[set]["template"]["spec"]["volumes"].as_array().cloned().unwrap_or_default();
            all.into_iter().map(|volume| volume["name"].clone()).collect::<Vec<_>>()
        };
        assert_eq!((names(0), names(1)), (vec![], vec![json!("data")]));
    }

    #[test]
    fn what_kueue_does_not_take_is_named_in_the_error() {
        let with = |role: &str, field: &str, value: Value| {
            let mut spec = json!({"driver": {}, "executor": {}});
            spec[role][field] = value;
            made(&spec).unwrap_err()
        };
        assert_eq!(made(&json!({"driver": {}})).unwrap_err(), "the SparkApplication has no spec.executor");
        assert_eq!(
            made(&json!({"mode": "client"})).unwrap_err(),
            "the SparkApplication has spec.mode: client; Kueue takes only cluster"
        );
        assert_eq!(
            made(&json!({"dynamicAllocation": {"enabled": true}})).unwrap_err(),
            "the SparkApplication has spec.dynamicAllocation.enabled: true; Spark then changes how many executors there are, so a \
             plan for them cannot be made; set it to false"
        );
        assert_eq!(
            with("driver", "memory", json!("16G")),
            "the driver of the SparkApplication has memory: \"16G\", which Kueue cannot read; write it as \"16g\", with a small letter"
        );
        assert_eq!(
            with("executor", "coreRequest", json!(4)),
            "the executor of the SparkApplication has coreRequest: 4, which Kueue cannot read; write it as \"4\", in quotes"
        );
        assert!(
            with("executor", "instances", json!(-1))
                .starts_with("the executor of the SparkApplication has instances: -1")
        );
    }
}
