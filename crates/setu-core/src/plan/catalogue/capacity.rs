//! The capacity of a machine before the system and the kubelet take their part. NodePool limits count it.

use crate::api::pod::ResourceList;
use crate::names;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

/// How a provider states the size of a machine.
struct MachineLabels {
    /// Labels for its cores, and for its memory in MiB.
    cores: &'static str,
    memory: &'static str,
    /// MiB that the provider subtracts first on arm64.
    contiguous: u64,
    /// Part of the memory, in thousandths, that it subtracts for the machine.
    machine: u64,
}

const MACHINE_LABELS: [MachineLabels; 3] = [
    MachineLabels {
        cores: "karpenter.k8s.aws/instance-cpu",
        memory: "karpenter.k8s.aws/instance-memory",
        contiguous: 64,
        machine: 75,
    },
    MachineLabels {
        cores: "karpenter.azure.com/sku-cpu",
        memory: "karpenter.azure.com/sku-memory",
        contiguous: 0,
        machine: 75,
    },
    MachineLabels {
        cores: "karpenter.k8s.gcp/instance-cpu",
        memory: "karpenter.k8s.gcp/instance-memory",
        contiguous: 0,
        machine: 70,
    },
];

/// Cores and memory from the labels of a type, before anything is subtracted. Empty for a type without these labels.
pub fn whole<'l>(label: impl Fn(&str) -> Option<&'l str>) -> ResourceList {
    sized(label, |_, all| all)
}

/// Cores and memory that the node reports as its capacity. Empty for a type without these labels.
pub fn of<'l>(label: impl Fn(&str) -> Option<&'l str> + Copy) -> ResourceList {
    sized(label, |provider, all| {
        let contiguous = if label(names::ARCH) == Some("arm64") { provider.contiguous } else { 0 };
        let all = all.saturating_sub(contiguous);
        all.saturating_sub(all.saturating_mul(provider.machine).div_ceil(1_000))
    })
}

/// Cores, and what is left of the memory.
fn sized<'l>(
    label: impl Fn(&str) -> Option<&'l str>,
    left: impl Fn(&MachineLabels, u64) -> u64,
) -> ResourceList {
    let number = |key: &str| label(key)?.parse::<u64>().ok();
    let mut list = ResourceList::new();
    for provider in &MACHINE_LABELS {
        list.extend(number(provider.cores).map(|cores| ("cpu".to_owned(), Quantity(cores.to_string()))));
        let memory = number(provider.memory).map(|all| left(provider, all));
        list.extend(memory.map(|all| ("memory".to_owned(), Quantity(format!("{all}Mi")))));
    }
    list
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn limits_count_the_cores_and_most_of_the_memory_of_each_providers_machines() {
        for (provider, memory) in [
            ("karpenter.k8s.aws/instance-", "15096Mi"),
            ("karpenter.azure.com/sku-", "15155Mi"),
            ("karpenter.k8s.gcp/instance-", "15237Mi"),
        ] {
            let label = |key: &str| match key.strip_prefix(provider) {
                Some("cpu") => Some("4"),
                Some("memory") => Some("16384"),
                _ => (key == names::ARCH).then_some("arm64"),
            };
            let expected: ResourceList =
                serde_json::from_value(json!({"cpu": "4", "memory": memory})).unwrap();
            assert_eq!(of(label), expected, "{provider}");
            let expected: ResourceList =
                serde_json::from_value(json!({"cpu": "4", "memory": "16384Mi"})).unwrap();
            assert_eq!(whole(label), expected, "{provider}");
        }
    }
}
