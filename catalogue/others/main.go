// Writes the catalogues of Azure and of Google Cloud that Setu embeds, from the hand-written tables beside this program.
// Labels and allocatable resources are those of the Karpenter providers, except for Google's GPUs: the provider counts one
// per machine. Azure's prices are those that its provider ships.
//
// Usage: others AZURE.csv AZURE_PROVIDER_DIR AZURE_OUT GOOGLE.csv GOOGLE_OUT
package main

import (
	"encoding/csv"
	"fmt"
	"log"
	"maps"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"catalogue/file"
)

const mi = 1 << 20

func main() {
	if len(os.Args) != 6 {
		log.Fatal("usage: others AZURE.csv AZURE_PROVIDER_DIR AZURE_OUT GOOGLE.csv GOOGLE_OUT")
	}
	azure, err := azurePrices(os.Args[2])
	if err != nil {
		log.Fatal(err)
	}
	for _, one := range []struct {
		table, out, name string
		prices           prices
		labels           func(row) map[string]string
		allocatable      func(row) map[string]string
	}{
		{os.Args[1], os.Args[3], "azure", azure, azureLabels, onAzure},
		{os.Args[4], os.Args[5], "gcp", prices{date: "2026-08-03", regions: []string{"us-central1"}}, googleLabels, onGoogle},
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
		provider := file.Provider{Date: one.prices.date, Keys: slices.Sorted(maps.Keys(keys)), Regions: one.prices.regions}
		for _, r := range rows {
			found := one.labels(r)
			typed := file.Type{Name: r.name, Allocatable: one.allocatable(r), Prices: one.prices.of(r), Accelerator: r.hidden()}
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
	// Millionths of a dollar per hour; 0 if the table has none.
	price int64
}

// On-demand prices.
type prices struct {
	date    string
	regions []string
	// Millionths of a dollar per hour by region and name. If nil, the table's prices are used.
	listed map[string]map[string]int64
}

// The prices of one line, in the order of the regions; 0 if unknown.
func (p prices) of(r row) []int64 {
	if p.listed == nil {
		return []int64{r.price}
	}
	var all []int64
	for _, region := range p.regions {
		all = append(all, p.listed[region][r.name])
	}
	return all
}

var (
	generatedAt = regexp.MustCompile(`generated at (\d{4}-\d{2}-\d{2})T`)
	ofRegion    = regexp.MustCompile(`initialOnDemandPrices\["(\w+)"\] = `)
	ofSize      = regexp.MustCompile(`^\s*"(\w+)":\s+([0-9.]+),$`)
)

// The prices that the Azure provider ships. The first region is used to compare sizes.
func azurePrices(dir string) (prices, error) {
	text, err := os.ReadFile(filepath.Join(dir, "pkg/providers/pricing/zz_generated.pricing.go"))
	if err != nil {
		return prices{}, err
	}
	date := generatedAt.FindSubmatch(text)
	if date == nil {
		return prices{}, fmt.Errorf("no date in %s", dir)
	}
	found := prices{date: string(date[1]), listed: map[string]map[string]int64{}}
	region := ""
	for line := range strings.Lines(string(text)) {
		line = strings.TrimRight(line, "\n")
		if begins := ofRegion.FindStringSubmatch(line); begins != nil {
			region = begins[1]
			found.listed[region] = map[string]int64{}
		}
		if size := ofSize.FindStringSubmatch(line); size != nil {
			price, err := strconv.ParseFloat(size[2], 64)
			if err != nil {
				return prices{}, fmt.Errorf("price of %s in %s: %w", size[1], region, err)
			}
			found.listed[region][size[1]] = int64(price*1e6 + 0.5)
		}
	}
	const usual = "eastus"
	if found.listed[usual] == nil {
		return prices{}, fmt.Errorf("no prices of %s in %s", usual, dir)
	}
	others := slices.Sorted(maps.Keys(found.listed))
	found.regions = append([]string{usual}, slices.DeleteFunc(others, func(name string) bool { return name == usual })...)
	return found, nil
}

// Radeon PRO V620: the Azure provider treats these machines as if they had no GPU, without a GPU label.
var azureHidden = regexp.MustCompile(`_V620_`)

// Whether it has a GPU that no label shows.
func (r row) hidden() bool { return r.maker != "" && azureHidden.MatchString(r.name) }

// The rows of a table, sorted, with columns by the names in the header.
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

// The labels of every Linux node.
func common(r row) map[string]string {
	return map[string]string{"kubernetes.io/arch": r.arch, "kubernetes.io/os": "linux"}
}

// Family, subfamily, vCPUs, features.
var azureSize = regexp.MustCompile(`^([A-Z])([A-Z]*)\d+([a-z]*)$`)
var azureVersion = regexp.MustCompile(`^v(\d+)$`)

// The provider finds only such GPU names in a size's name: MI300X does not match.
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

// The allocatable resources on AKS. The number of pods depends on the AKSNodeClass and the network plugin.
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

// What the kubelet reserves, with a rate for each bracket.
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
	// For example, c4-standard-4-lssd has size 4.
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

// The allocatable resources on GKE, with a kube-proxy mirror pod on each node.
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
