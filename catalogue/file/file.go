// Package file has the form of the files in which Setu embeds its catalogue (crates/setu-core/src/plan/catalogue).
package file

import (
	"compress/gzip"
	"encoding/json"
	"os"
)

// Provider has the types of one provider in the order of their names.
type Provider struct {
	// Date of the prices.
	Date string `json:"date"`
	// Keys of the labels.
	Keys []string `json:"keys"`
	// Regions of the prices: first that by which types are compared.
	Regions []string `json:"regions"`
	// Estimates say which of these prices the provider itself does not have.
	Estimates *Estimates `json:"estimates,omitempty"`
	Types     []Type     `json:"types"`
}

// Estimates are the prices of the last regions: today's price of the first region times what a region's price was of that one's
// on an earlier day.
type Estimates struct {
	// Date of the earlier prices.
	Date string `json:"date"`
	// First is the position of the first such region.
	First int `json:"first"`
}

// Type is one instance type.
type Type struct {
	Name string `json:"name"`
	// Labels by key; empty for one that the type has not.
	Labels []string `json:"labels"`
	// What pods may use.
	Allocatable map[string]string `json:"allocatable"`
	// Prices on demand by region, in millionths an hour; 0 where it is not sold or nothing is known.
	Prices []int64 `json:"prices"`
	// Whether it has accelerators of which neither labels nor resources tell.
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
