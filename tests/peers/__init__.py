"""What PyTorch's own tests check of autograd, under gradc: `make peers`, and a short part of it in every run of the tests."""
