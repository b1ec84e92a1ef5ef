// Writes the catalogue of EC2 types that Setu embeds (crates/setu-core/src/plan/catalogue): the values that Karpenter's own
// provider uses, computed from its tables and from the recorded EC2 responses that moto ships. The provider has prices for
// three regions; the prices of the others are estimated (regions.go).
//
// Usage: catalogue MOTO_WHEEL PROVIDER_DIR REGIONS_MODULE OUT
package main

import (
	"archive/zip"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"log"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/aws/aws-sdk-go-v2/service/ec2"
	ec2types "github.com/aws/aws-sdk-go-v2/service/ec2/types"
	corev1 "k8s.io/api/core/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/cloudprovider"

	v1 "github.com/aws/karpenter-provider-aws/pkg/apis/v1"
	"github.com/aws/karpenter-provider-aws/pkg/fake"
	"github.com/aws/karpenter-provider-aws/pkg/operator/options"
	"github.com/aws/karpenter-provider-aws/pkg/providers/instancetype"
	"github.com/aws/karpenter-provider-aws/pkg/providers/pricing"

	"catalogue/file"
)

func main() {
	if len(os.Args) != 5 {
		log.Fatal("usage: catalogue MOTO_WHEEL PROVIDER_DIR REGIONS_MODULE OUT")
	}
	if err := run(os.Args[1], os.Args[2], os.Args[3], os.Args[4]); err != nil {
		log.Fatal(err)
	}
}

func run(wheel, provider, regions, out string) error {
	infos, err := fromMoto(wheel)
	if err != nil {
		return err
	}
	// The provider's own tests know a few more types.
	tested, err := fake.NewEC2API().DescribeInstanceTypes(context.Background(), &ec2.DescribeInstanceTypesInput{})
	if err != nil {
		return err
	}
	for _, info := range tested.InstanceTypes {
		if _, ok := infos[string(info.InstanceType)]; !ok {
			infos[string(info.InstanceType)] = info
		}
	}
	date, err := pricesOf(provider)
	if err != nil {
		return err
	}
	earlier, err := earlierPrices(regions)
	if err != nil {
		return err
	}
	return file.Write(out, "aws", aws(infos, date, earlier))
}

func fromMoto(wheel string) (map[string]ec2types.InstanceTypeInfo, error) {
	archive, err := zip.OpenReader(wheel)
	if err != nil {
		return nil, err
	}
	defer archive.Close()
	packed, err := archive.Open("moto/ec2/resources/instance_types.json.gz")
	if err != nil {
		return nil, err
	}
	plain, err := gzip.NewReader(packed)
	if err != nil {
		return nil, err
	}
	infos := map[string]ec2types.InstanceTypeInfo{}
	return infos, json.NewDecoder(plain).Decode(&infos)
}

// The date on which the provider's prices were generated. Only the file has it.
func pricesOf(dir string) (string, error) {
	text, err := os.ReadFile(filepath.Join(dir, "pkg/providers/pricing/zz_generated.pricing_aws.go"))
	if err != nil {
		return "", err
	}
	found := regexp.MustCompile(`generated at (\d{4}-\d{2}-\d{2})T`).FindSubmatch(text)
	if found == nil {
		return "", fmt.Errorf("no date in %s", dir)
	}
	return string(found[1]), nil
}

func aws(infos map[string]ec2types.InstanceTypeInfo, date string, earlier earlier) file.Provider {
	ctx := options.ToContext(context.Background(), &options.Options{VMMemoryOverheadPercent: 0.075})
	prices := map[string]map[ec2types.InstanceType]float64{}
	// The prices of China are in yuan, so they are left out.
	tables := []map[string]map[ec2types.InstanceType]float64{
		pricing.InitialOnDemandPricesAWS, pricing.InitialOnDemandPricesUSGov,
	}
	for _, table := range tables {
		maps.Copy(prices, table)
	}
	listed := slices.Sorted(maps.Keys(prices))
	maps.Copy(prices, earlier.estimates(prices[listed[0]], listed))
	others := slices.DeleteFunc(slices.Sorted(maps.Keys(prices)), func(region string) bool { return slices.Contains(listed, region) })
	provider := file.Provider{
		Date:      date,
		Regions:   append(listed, others...),
		Estimates: &file.Estimates{Date: earlier.date, First: len(listed)},
	}
	var all []*cloudprovider.InstanceType
	keys := map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(infos)) {
		info := infos[name]
		if !usable(info) {
			continue
		}
		it := instancetype.NewInstanceType(ctx, info, "", nil, nil, nil, nil, nil, nil, nil, nil, nil, nil, nil, v1.AMIFamilyAL2023, nil)
		all = append(all, it)
		for key := range labels(it) {
			keys[key] = true
		}
	}
	provider.Keys = slices.Sorted(maps.Keys(keys))
	for _, it := range all {
		provider.Types = append(provider.Types, typed(it, provider, prices))
	}
	return provider
}

// Whether Karpenter would offer the type: it must have a known architecture, and not be a bare-metal Mac.
func usable(info ec2types.InstanceTypeInfo) bool {
	if strings.HasPrefix(string(info.InstanceType), "mac") {
		return false
	}
	return slices.ContainsFunc(info.ProcessorInfo.SupportedArchitectures, func(a ec2types.ArchitectureType) bool {
		_, ok := v1.AWSToKubeArchitectures[string(a)]
		return ok
	})
}

// The labels that a machine always has with one value. The operating system depends on the EC2NodeClass's AMI family.
func labels(it *cloudprovider.InstanceType) map[string]string {
	found := map[string]string{}
	for key, requirement := range it.Requirements {
		other := key == corev1.LabelTopologyZone || key == corev1.LabelTopologyRegion || key == karpv1.CapacityTypeLabelKey ||
			key == corev1.LabelInstanceTypeStable || key == corev1.LabelOSStable
		if !other && requirement.Operator() == corev1.NodeSelectorOpIn && requirement.Len() == 1 && requirement.Any() != "" {
			found[key] = requirement.Any()
		}
	}
	return found
}

func typed(it *cloudprovider.InstanceType, provider file.Provider, prices map[string]map[ec2types.InstanceType]float64) file.Type {
	one := file.Type{Name: it.Name, Allocatable: map[string]string{}}
	found := labels(it)
	for _, key := range provider.Keys {
		one.Labels = append(one.Labels, found[key])
	}
	for name, amount := range it.Allocatable() {
		// The EC2NodeClass determines the size of the root volume.
		if !amount.IsZero() && name != corev1.ResourceEphemeralStorage {
			one.Allocatable[string(name)] = amount.String()
		}
	}
	for _, region := range provider.Regions {
		one.Prices = append(one.Prices, int64(prices[region][ec2types.InstanceType(it.Name)]*1e6+0.5))
	}
	return one
}
