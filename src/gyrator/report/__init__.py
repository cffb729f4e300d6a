"""What the compiler did and why: records of compiled graphs, and reports made of them."""
