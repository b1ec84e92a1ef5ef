package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"

	ec2types "github.com/aws/aws-sdk-go-v2/service/ec2/types"
)

// A region, or a local zone, which has its own prices like a region.
var placeOf = regexp.MustCompile(`^[a-z]{2}(-[a-z]+)+-\d(-[a-z]{3}-\d)?$`)

// Factors outside of these bounds are errors in the table.
const lowest, highest = 0.5, 3

// On-demand prices of every region on an earlier date.
type earlier struct {
	date   string
	prices map[string]map[ec2types.InstanceType]float64
}

// One type, as in the table.
type row struct {
	InstanceType ec2types.InstanceType `json:"instance_type"`
	Pricing      map[string]struct {
		Linux struct {
			OnDemand any `json:"ondemand"`
		} `json:"linux"`
	} `json:"pricing"`
}

// Reads the table of a downloaded module. Its version contains the date.
func earlierPrices(module string) (earlier, error) {
	day := regexp.MustCompile(`@v0\.0\.0-(\d{4})(\d{2})(\d{2})`).FindStringSubmatch(module)
	if day == nil {
		return earlier{}, fmt.Errorf("no date in %s", module)
	}
	read := earlier{date: fmt.Sprintf("%s-%s-%s", day[1], day[2], day[3]), prices: map[string]map[ec2types.InstanceType]float64{}}
	text, err := os.ReadFile(filepath.Join(module, "data/instances.json"))
	if err != nil {
		return earlier{}, err
	}
	var rows []row
	if err := json.Unmarshal(text, &rows); err != nil {
		return earlier{}, err
	}
	for _, row := range rows {
		for place, of := range row.Pricing {
			price, err := strconv.ParseFloat(fmt.Sprint(of.Linux.OnDemand), 64)
			if err != nil || price <= 0 || !placeOf.MatchString(place) {
				continue
			}
			if read.prices[place] == nil {
				read.prices[place] = map[ec2types.InstanceType]float64{}
			}
			read.prices[place][row.InstanceType] = price
		}
	}
	return read, nil
}

// Estimated prices in the regions that are not listed: today's price in the first listed region, times the earlier ratio of
// the two regions' prices. For a type that the first region never sold, it is the earlier price.
func (e earlier) estimates(today map[ec2types.InstanceType]float64, listed []string) map[string]map[ec2types.InstanceType]float64 {
	all := map[string]map[ec2types.InstanceType]float64{}
	for place, prices := range e.prices {
		if slices.Contains(listed, place) {
			continue
		}
		all[place] = map[ec2types.InstanceType]float64{}
		for name, price := range prices {
			before, wasSold := e.prices[listed[0]][name]
			now, isSold := today[name]
			factor := price / before
			switch {
			case wasSold && isSold && lowest < factor && factor < highest:
				all[place][name] = now * factor
			case !wasSold && !isSold:
				all[place][name] = price
			}
		}
	}
	return all
}
