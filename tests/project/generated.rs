//! Generated files are committed and match the code.

use serde_json::{Value, json};
use setu::policy::PolicyFile;
use std::path::Path;

fn compare(file: &str, made: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
    if std::env::var_os("SETU_REGENERATE").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, made).unwrap();
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(committed, made, "{file} is out of date: run `just generate`");
}

#[test]
fn the_policy_schema_and_reference_match_the_code() {
    compare("charts/setu/policy.schema.json", &setu::policy::schema::json());
    compare("docs/policy.md", &setu::policy::reference::markdown());
}

/// The policy's schema in draft 7, the only dialect that every helm reads. Parts that only editors and the API
/// server use are left out. Alternatives are written so that helm's complaint is one line.
fn for_helm() -> Value {
    let text = setu::policy::schema::json().replace("#/$defs/", "#/definitions/");
    let mut root: Value = serde_json::from_str(&text).unwrap();
    let file = root.as_object_mut().unwrap();
    let mut definitions = file.remove("$defs").unwrap();
    // These keys are optional in values.
    file.retain(|key, _| !["$schema", "title", "required"].contains(&key.as_str()));
    definitions["PolicyFile"] = root;
    plain(&mut definitions);
    definitions
}

/// Turns alternatives of constants into an enum, and `anyOf` with `null` into an `if`: helm would report each
/// alternative separately.
fn plain(schema: &mut Value) {
    match schema {
        Value::Object(object) => {
            object.retain(|key, _| !key.starts_with("x-kubernetes-"));
            let constants = object.get("oneOf").and_then(Value::as_array).and_then(|all| {
                all.iter().map(|one| one.get("const").cloned()).collect::<Option<Vec<Value>>>()
            });
            if let Some(constants) = constants {
                object.remove("oneOf");
                object.insert("enum".to_owned(), Value::Array(constants));
            }
            let nothing = json!({"type": "null"});
            let other = match object.get("anyOf").and_then(Value::as_array).map(Vec::as_slice) {
                Some([one, other]) if *other == nothing => Some(one.clone()),
                _ => None,
            };
            if let Some(other) = other {
                object.remove("anyOf");
                object.insert("if".to_owned(), json!({"not": nothing}));
                object.insert("then".to_owned(), other);
            }
            object.values_mut().for_each(plain);
        }
        Value::Array(all) => all.iter_mut().for_each(plain),
        _ => {}
    }
}

#[test]
fn the_schema_of_the_charts_values_contains_the_policy_schema() {
    let file = "charts/setu/values.schema.json";
    let text = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(file)).unwrap();
    let (own, _) = text.split_once("  \"definitions\": ").unwrap();
    let definitions = serde_json::to_string_pretty(&for_helm()).unwrap().replace('\n', "\n  ");
    compare(file, &format!("{own}  \"definitions\": {definitions}\n}}\n"));
    let all: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(all["properties"]["policy"]["then"]["$ref"], "#/definitions/PolicyFile");
}

#[test]
fn the_example_policy_is_valid_and_has_every_key() {
    let text =
        std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/policy.yaml")).unwrap();
    let file = PolicyFile::parse(&text).unwrap();
    let spec = serde_json::to_value(&file.defaults).unwrap();
    let reference = setu::policy::reference::markdown();
    let keys = reference.lines().filter_map(|l| l.strip_prefix("| `")?.split_once('`').map(|(key, _)| key));
    let (_, of_spec) = reference.split_once("## Keys of `defaults`").unwrap();
    let (of_spec, _) = of_spec.split_once("## What a Job").unwrap();
    for key in keys.filter(|key| of_spec.contains(&format!("| `{key}` |")) && !key.contains("[]")) {
        let found = key.split('.').try_fold(&spec, |value, part| value.get(part));
        let elsewhere =
            ["nodePoolName", "retry.compat", "gates.placement.namespaces.matchExpressions"].contains(&key);
        assert!(found.is_some() || elsewhere, "{key} is not in examples/policy.yaml");
    }
}

#[test]
fn the_charts_artifact_hub_annotations_are_correct() {
    let read = |file: &str| -> Value {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("charts/setu").join(file);
        serde_yaml::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
    };
    let chart = read("Chart.yaml");
    let annotation = |key: &str| -> Value {
        let text = chart["annotations"][format!("artifacthub.io/{key}")].as_str().unwrap();
        serde_yaml::from_str(text).unwrap()
    };
    let crd = read("files/crds.yaml");
    let (definition, names) = (&annotation("crds")[0], &crd["spec"]["names"]);
    assert_eq!((&definition["name"], &definition["kind"]), (&crd["metadata"]["name"], &names["kind"]));
    assert_eq!(definition["version"], crd["spec"]["versions"][0]["name"]);
    let example = &annotation("crdsExamples")[0];
    assert_eq!(example["kind"], names["kind"]);
    serde_json::from_value::<setu::api::parameters::ProvisioningParametersSpec>(example["spec"].clone())
        .unwrap();
    assert_eq!(annotation("images")[0]["image"], read("values.yaml")["tests"]["image"]);
    let cargo = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml")).unwrap();
    let license = chart["annotations"]["artifacthub.io/license"].as_str().unwrap();
    assert!(cargo.contains(&format!("license = \"{license}\"")), "{license}");
    for key in ["links", "changes"] {
        assert!(annotation(key).as_array().is_some_and(|all| !all.is_empty()), "{key}");
    }
}

#[test]
fn the_charts_viewer_role_matches_the_example() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/rbac/setu-viewer.yaml");
    compare("charts/setu/files/viewer.yaml", &std::fs::read_to_string(path).unwrap());
}

#[test]
fn the_crd_matches_the_code() {
    let crd = setu::cli::crds::yaml().unwrap();
    compare("examples/setup/crds.yaml", &crd);
    compare("charts/setu/files/crds.yaml", &crd);
    compare("manifests/crds.yaml", &crd);
}
