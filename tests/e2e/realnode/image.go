package realnode

import "ctrlmesh.kusionstack.io/e2e/images"

// Image is an image that a node can load.
type Image = images.Image
