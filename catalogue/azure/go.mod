// Pins the release of Karpenter's provider for Azure whose prices the catalogue has.
module catalogue/azure

go 1.26.6

require github.com/Azure/karpenter-provider-azure v1.14.2
