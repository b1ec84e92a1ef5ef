// Package file defines the format of the files with Setu's embedded catalogue (crates/setu-core/src/plan/catalogue).
package file

import (
	"compress/gzip"
	"encoding/json"
	"os"
)

// Provider has the types of one provider, sorted by name.
type Provider struct {
	// Date of the prices.
	Date string `json:"date"`
	// Keys of the labels.
	Keys []string `json:"keys"`
	// Regions of the prices. The first one is used to compare types.
	Regions []string `json:"regions"`
	// Estimates describe which of these prices are not from the provider.
	Estimates *Estimates `json:"estimates,omitempty"`
	Types     []Type     `json:"types"`
}

// Estimates are the prices of the last regions: today's price in the first region, times the ratio of both regions' prices
// on an earlier date.
type Estimates struct {
	// Date of the earlier prices.
	Date string `json:"date"`
	// First is the index of the first such region.
	First int `json:"first"`
}

// Type is one instance type.
type Type struct {
	Name string `json:"name"`
	// Labels in the order of the keys; empty if the type lacks one.
	Labels []string `json:"labels"`
	// What pods may use.
	Allocatable map[string]string `json:"allocatable"`
	// On-demand prices by region, in millionths per hour; 0 if it is not sold there or the price is unknown.
	Prices []int64 `json:"prices"`
	// Whether it has accelerators that neither labels nor resources show.
	Accelerator bool `json:"accelerator,omitempty"`
}

// Write writes the types of one provider.
func Write(path, name string, provider Provider) error {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	plain, err := gzip.NewWriterLevel(file, gzip.BestCompression)
	if err != nil {
		return err
	}
	if err := json.NewEncoder(plain).Encode(map[string]Provider{name: provider}); err != nil {
		return err
	}
	if err := plain.Close(); err != nil {
		return err
	}
	return file.Close()
}
