package realnode

import "ctrlmesh.kusionstack.io/e2e/images"

// Image is what a node can load.
type Image = images.Image
