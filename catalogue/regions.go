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

// A region, or a local zone, which has prices as a region has.
var placeOf = regexp.MustCompile(`^[a-z]{2}(-[a-z]+)+-\d(-[a-z]{3}-\d)?$`)

// Factors outside of these bounds are mistakes of the table.
const lowest, highest = 0.5, 3

// Prices on demand of every region on a day in the past.
type earlier struct {
	date   string
	prices map[string]map[ec2types.InstanceType]float64
}

// One type, as the table has it.
type row struct {
	InstanceType ec2types.InstanceType `json:"instance_type"`
	Pricing      map[string]struct {
		Linux struct {
			OnDemand any `json:"ondemand"`
		} `json:"linux"`
	} `json:"pricing"`
}

// Reads the table of a downloaded module, of which the version says the day.
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

// What types cost in the regions that are not listed: today's price of the first listed region times what the other region's was of
// it. Of a type that the first region has never sold, the earlier price.
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
