"""Pictures of graphs: laid out with Graphviz, and written as SVG, PNG, PDF, DOT, Mermaid or a page."""
