// Pins the release of the tables from which the catalogue knows how EC2's prices differ between regions.
module catalogue/regions

go 1.26.6

require github.com/cristim/ec2-instances-info v0.0.0-20250528091325-32acf84f42eb
