// Writes the catalogues of Azure and of Google Cloud that Setu embeds, from the tables that are kept by hand beside this program.
// Labels and what pods may use are what their Karpenter providers make of a type, but for Google's GPUs, of which it counts one a machine.
//
// Usage: others AZURE.csv AZURE_OUT GOOGLE.csv GOOGLE_OUT
package main

import (
	"encoding/csv"
	"fmt"
	"log"
	"maps"
	"math"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"catalogue/file"
)

const mi = 1 << 20

func main() {
	if len(os.Args) != 5 {
		log.Fatal("usage: others AZURE.csv AZURE_OUT GOOGLE.csv GOOGLE_OUT")
	}
	for _, one := range []struct {
		table, out, name, date, region string
		labels                         func(row) map[string]string
		allocatable                    func(row) map[string]string
	}{
		{os.Args[1], os.Args[2], "azure", "2026-06-18", "eastus", azureLabels, onAzure},
		{os.Args[3], os.Args[4], "gcp", "2026-08-03", "us-central1", googleLabels, onGoogle},
	} {
		rows, err := read(one.table)
		if err != nil {
			log.Fatal(err)
		}
		keys := map[string]bool{}
		for _, r := range rows {
			for key := range one.labels(r) {
				keys[key] = true
			}
		}
		provider := file.Provider{Date: one.date, Keys: slices.Sorted(maps.Keys(keys)), Regions: []string{one.region}}
		for _, r := range rows {
			found := one.labels(r)
			typed := file.Type{Name: r.name, Allocatable: one.allocatable(r), Prices: []int64{r.price}, Accelerator: r.hidden()}
			for _, key := range provider.Keys {
				typed.Labels = append(typed.Labels, found[key])
			}
			provider.Types = append(provider.Types, typed)
		}
		if err := file.Write(one.out, one.name, provider); err != nil {
			log.Fatal(err)
		}
	}
}

// One line of a table.
type row struct {
	name, arch, gpu, maker string
	cpus, memory, gpus     int64
	// Millionths of a dollar an hour; 0 where none is known.
	price int64
}

// Radeon PRO V620: the provider for Azure takes machines with it for plain ones, without a label of a GPU.
var azureHidden = regexp.MustCompile(`_V620_`)

// Whether it has a GPU of which no label tells.
func (r row) hidden() bool { return r.maker != "" && azureHidden.MatchString(r.name) }

// The lines of a table, by the names in its first one, sorted.
func read(path string) ([]row, error) {
	opened, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer opened.Close()
	reader := csv.NewReader(opened)
	reader.Comment = '#'
	lines, err := reader.ReadAll()
	if err != nil {
		return nil, err
	}
	var rows []row
	for _, line := range lines[1:] {
		fields := map[string]string{}
		for n, value := range line {
			fields[lines[0][n]] = value
		}
		one := row{name: fields["name"], arch: fields["arch"], gpu: fields["gpu"], maker: fields["maker"]}
		for name, number := range map[string]*int64{"cpus": &one.cpus, "memory": &one.memory, "gpus": &one.gpus} {
			if *number, err = strconv.ParseInt(fields[name], 10, 64); err != nil {
				return nil, fmt.Errorf("%s of %s: %w", name, one.name, err)
			}
		}
		if fields["price"] != "" {
			price, err := strconv.ParseFloat(fields["price"], 64)
			if err != nil {
				return nil, fmt.Errorf("price of %s: %w", one.name, err)
			}
			one.price = int64(price*1e6 + 0.5)
		}
		rows = append(rows, one)
	}
	slices.SortFunc(rows, func(a, b row) int { return strings.Compare(a.name, b.name) })
	return rows, nil
}

// The labels of every node on Linux.
func common(r row) map[string]string {
	return map[string]string{"kubernetes.io/arch": r.arch, "kubernetes.io/os": "linux"}
}

// Family, subfamily, vCPUs, features.
var azureSize = regexp.MustCompile(`^([A-Z])([A-Z]*)\d+([a-z]*)$`)
var azureVersion = regexp.MustCompile(`^v(\d+)$`)

// The provider reads no other names of GPUs out of a size's: MI300X has none.
var azureGPU = regexp.MustCompile(`^[A-Z]\d+$`)

func azureLabels(r row) map[string]string {
	parts := strings.Split(strings.TrimPrefix(r.name, "Standard_"), "_")
	size := azureSize.FindStringSubmatch(parts[0])
	if size == nil {
		log.Fatalf("%s is named like no size of Azure", r.name)
	}
	series, version := size[1]+size[2]+size[3], "1"
	if found := azureVersion.FindStringSubmatch(parts[len(parts)-1]); found != nil {
		series, version = series+"_"+found[0], found[1]
	}
	labels := common(r)
	for name, value := range map[string]string{
		"name": r.name, "family": size[1], "series": series, "version": version,
		"cpu": strconv.FormatInt(r.cpus, 10), "memory": strconv.FormatInt(r.memory, 10), "gpu-count": strconv.FormatInt(r.gpus, 10),
	} {
		labels["karpenter.azure.com/sku-"+name] = value
	}
	for _, name := range []string{"cpu", "memory"} {
		labels["kubernetes.azure.com/sku-"+name] = labels["karpenter.azure.com/sku-"+name]
	}
	if r.maker == "" || r.hidden() {
		return labels
	}
	labels["karpenter.azure.com/sku-gpu-manufacturer"] = r.maker
	if at := slices.IndexFunc(parts, azureGPU.MatchString); at > 0 {
		labels["karpenter.azure.com/sku-gpu-name"] = parts[at]
	}
	return labels
}

// What is left for pods on AKS: how many of them, the AKSNodeClass and the network plugin say.
func onAzure(r row) map[string]string {
	gib := float64(r.memory) / 1024
	memory := int64(gib) * 1024 * mi
	memory -= int64(math.Ceil(float64(memory) * 0.075))
	memory -= int64(1024*kept(gib, []bracket{{4, 0.25}, {8, 0.20}, {16, 0.10}, {128, 0.06}, {math.MaxFloat64, 0.02}})) * mi
	memory -= 750 * mi
	cpu := int64(1000 * kept(float64(r.cpus), []bracket{{1, 0.06}, {2, 0.04}, {4, 0.02}, {math.MaxFloat64, 0.01}}))
	device := "nvidia.com/gpu"
	if r.maker == "amd" {
		device = "amd.com/gpu"
	}
	return allocatable(r.cpus*1000-cpu, memory, device, r.gpus)
}

type bracket struct{ to, rate float64 }

// What the kubelet keeps, at a rate for each part.
func kept(amount float64, brackets []bracket) float64 {
	var sum, from float64
	for _, b := range brackets {
		if amount > from {
			sum += (min(amount, b.to) - from) * b.rate
		}
		from = b.to
	}
	return sum
}

func googleLabels(r row) map[string]string {
	parts := strings.Split(r.name, "-")
	family, size := parts[0], parts[len(parts)-1]
	// c4-standard-4-lssd is of size 4.
	if len(parts) > 3 {
		size = parts[len(parts)-2]
	}
	generation := family[len(family)-1:]
	if len(family) == 3 {
		generation = family[1:2]
	}
	labels := common(r)
	// The provider never sets the last two, so no node has them.
	for name, value := range map[string]string{
		"family": family, "shape": parts[1], "size": size, "generation": generation,
		"cpu": strconv.FormatInt(r.cpus, 10), "memory": strconv.FormatInt(r.memory, 10),
		"gpu-manufacturer": "", "gpu-memory": "",
	} {
		labels["karpenter.k8s.gcp/instance-"+name] = value
	}
	if r.gpus > 0 {
		labels["karpenter.k8s.gcp/instance-gpu-name"] = r.gpu
		labels["karpenter.k8s.gcp/instance-gpu-count"] = strconv.FormatInt(r.gpus, 10)
		labels["cloud.google.com/gke-accelerator"] = r.gpu
	}
	return labels
}

// What is left for pods on GKE, with a mirror pod of kube-proxy on each node.
func onGoogle(r row) map[string]string {
	memory := r.memory * mi
	memory -= int64(float64(memory) * 0.07)
	reserved := int64(255)
	if r.memory > 1024 {
		reserved = 0
		from := int64(0)
		for _, b := range []bracket{{4096, 0.25}, {8192, 0.20}, {16384, 0.10}, {131072, 0.06}, {math.MaxInt32, 0.02}} {
			reserved += int64(float64(max(min(r.memory, int64(b.to))-from, 0)) * b.rate)
			from = int64(b.to)
		}
	}
	memory -= (reserved + 100) * mi
	cpu := int64(1060)
	if !slices.Contains([]string{"e2-micro", "e2-small", "e2-medium"}, r.name) {
		brackets := []bracket{{1, 0.06}, {2, 0.01}, {4, 0.005}, {math.MaxFloat64, 0.0025}}
		cpu = int64(math.Round(1000 * kept(float64(r.cpus), brackets)))
	}
	list := allocatable(r.cpus*1000-cpu-100, memory, "nvidia.com/gpu", r.gpus)
	list["pods"] = "110"
	return list
}

func allocatable(millicores, memory int64, device string, devices int64) map[string]string {
	list := map[string]string{"cpu": fmt.Sprintf("%dm", millicores), "memory": fmt.Sprintf("%dMi", memory/mi)}
	if millicores%1000 == 0 {
		list["cpu"] = strconv.FormatInt(millicores/1000, 10)
	}
	if devices > 0 {
		list[device] = strconv.FormatInt(devices, 10)
	}
	return list
}
